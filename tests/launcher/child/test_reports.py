# SPDX-License-Identifier: Apache-2.0
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.launcher.child.reporter import PipeReporter
from pontil.launcher.child.reports import (
    FailureReport,
    HeartbeatReport,
    ProgressReport,
    ReadyReport,
    Report,
    decode,
    encode,
)
from pontil.runtime.foundation.line_pipe import MAX_LINE_BYTES, LinePipe
from pontil.runtime.reporting import Reporter

FACTS = st.dictionaries(st.text().filter(lambda name: name != "kind"), st.integers() | st.text())
REPORTS = (
    st.builds(ProgressReport, st.text(), st.booleans())
    | st.builds(FailureReport, st.text())
    | st.builds(ReadyReport, FACTS)
    | st.builds(HeartbeatReport, st.integers(), st.floats(0, 1e9), st.booleans())
)


@given(REPORTS)
def test_a_report_arrives_as_it_was_sent_on_one_line(report: Report) -> None:
    line = encode(report)
    assert line.count(b"\n") == 1 and decode(line) == report


@given(st.binary())
def test_whatever_stands_on_a_line_is_a_report_or_none(line: bytes) -> None:
    assert isinstance(decode(line), Report | None)


@pytest.mark.parametrize("line", [b"", b"[]", b"3", b'{"kind": 3}', b'{"kind": "heartbeat"}', b'{"text": "a"}'])
def test_lines_that_are_no_report(line: bytes) -> None:
    assert decode(line) is None


@pytest.mark.parametrize(
    "line",
    [
        b'{"kind": "asked", "number": 1, "request": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        b'{"kind": "asked", "number": [1], "request": {}}',
        b'{"kind": "asked", "number": 1, "request": "drain"}',
        b'{"kind": "heartbeat", "step": 1, "age": "long", "working": true}',
        b'{"kind": "tested", "number": 1, "routes": 2}',
        b'{"kind": "progress", "text": null}',
        b'{"kind": "progress", "text": "a", "waits": 1}',
    ],
)
def test_a_child_of_somebody_else_cannot_make_the_supervisor_fail(line: bytes) -> None:
    assert decode(line) is None


def test_the_reporter_beats_with_the_last_step() -> None:
    reading, writing = os.pipe()
    pipe, reporter = os.fdopen(reading), PipeReporter(writing, beat=0.001)
    as_declared: Reporter = reporter
    as_declared.stepped(7, True)
    reporter.start()
    beat = decode(pipe.readline().encode())
    assert isinstance(beat, HeartbeatReport) and (beat.step, beat.working) == (7, True)
    reporter.stop()
    # It waits for twice the time between two heartbeats, which here is nothing.
    reporter.thread.join(60)
    assert not reporter.thread.is_alive()  # D5
    os.close(writing)
    pipe.close()


def test_a_pipe_gives_whole_lines_and_at_the_end_the_rest() -> None:
    reading, writing = os.pipe()
    pipe = LinePipe(reading)
    assert pipe.read() == []
    os.write(writing, b"one\ntw")
    assert pipe.read() == [b"one"]
    os.write(writing, b"o\n\nlast")
    os.close(writing)
    assert pipe.read_rest() == [b"two", b"", b"last"] and pipe.closed
    pipe.close()


def test_a_line_without_end_is_not_kept_for_ever() -> None:
    reading, writing = os.pipe()
    pipe = LinePipe(reading)

    def flood() -> None:
        with os.fdopen(writing, "wb") as end:
            end.write(b"x" * (MAX_LINE_BYTES + 70000))

    writer = threading.Thread(target=flood)
    writer.start()
    pieces: list[bytes] = []
    while not pipe.closed:
        pieces += pipe.read()
        assert len(pipe.partial) <= MAX_LINE_BYTES
    writer.join()
    assert sum(map(len, pieces)) == MAX_LINE_BYTES + 70000 and len(pieces) == 2
    pipe.close()
