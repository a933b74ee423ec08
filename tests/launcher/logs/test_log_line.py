# SPDX-License-Identifier: Apache-2.0
"""Log records cross the pipe whole, whatever they contain; a line that is no record becomes an entry too."""

import json
import logging
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.launcher.logs.log_line import LogLine, PipeFormatter, TextFormatter, read_line


def record(message: str, *arguments: object, request: str | None = None, failed: bool = False) -> logging.LogRecord:
    made = logging.LogRecord("pontil.worker", logging.WARNING, "f.py", 1, message, arguments, None)
    made.created = 1.5
    if request is not None:
        made.request = request
    if failed:
        try:
            raise ValueError("a bug")
        except ValueError:
            made.exc_info = sys.exc_info()
    return made


def crossed(one: logging.LogRecord) -> LogLine:
    line = PipeFormatter().format(one)
    assert "\n" not in line
    return read_line("decode:0", line.encode(), 9.0)


def test_the_trace_of_a_request_crosses_for_programs() -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    one = record("hi", request="r-1")
    one.__dict__["trace_id"] = trace
    line = crossed(one)
    assert line.trace_id == trace and json.loads(line.json)["trace_id"] == trace
    assert trace not in line.text and "trace_id" not in json.loads(crossed(record("hi")).json)


@given(st.text(st.characters(codec="utf-8")), st.none() | st.text(st.characters(codec="utf-8"), min_size=1))
def test_a_record_crosses_whole(message: str, request: str | None) -> None:  # F6
    line = crossed(record("%s", message, request=request))
    assert line == LogLine(1.5, "warning", "decode:0", message.rstrip("\n"), "pontil.worker", request)
    assert json.loads(line.json)["message"] == line.message and "\n" not in line.json
    assert all(text.startswith("1970-01-01T00:00:01.500Z warning decode:0 |") for text in line.text.split("\n"))


def test_a_traceback_is_one_entry_and_every_line_of_it_is_headed() -> None:
    line = crossed(record("failed", failed=True, request="r7"))
    shown = line.text.splitlines()
    assert shown[0].endswith("| [r7] failed") and shown[-1].endswith("| [r7] ValueError: a bug")


def test_an_id_that_stands_in_the_message_is_not_repeated() -> None:
    assert crossed(record("request r7 ended", request="r7")).text.endswith("decode:0 | request r7 ended")


@pytest.mark.parametrize(
    "raw",
    [
        b"Segmentation fault", b"", b"\xff\xfe", b'{"time": 1.5', b'{"time": "x", "level": "info", "message": "m"}',
        b'{"time": 1.5, "level": 3, "message": "m"}', b'{"time": 1.5}', b'{"a": 1}', b"[1]",
    ],
)  # fmt: skip
def test_what_is_no_record_is_shown_as_it_came(raw: bytes) -> None:
    assert read_line("p", raw, 9.0) == LogLine(9.0, "info", "p", raw.decode(errors="replace"))


def test_nothing_moves_the_cursor() -> None:
    text = LogLine(0.0, "info", "p", "a\x1b[2J\x07b\tc").text
    assert text.endswith("| a\\x1b[2J\\x07b\tc")


def test_a_terminal_gets_the_same_as_text() -> None:
    assert TextFormatter("prepare").format(record("x %d", 1)) == "1970-01-01T00:00:01.500Z warning prepare | x 1"
