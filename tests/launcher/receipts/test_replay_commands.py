# SPDX-License-Identifier: Apache-2.0
"""Mistakes of those who record and replay: one sentence and an exit code, before anything is sent."""

import errno
import hashlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pontil.launcher.cli import cli
from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.receipts import record_writer
from pontil.launcher.receipts.record_writer import RecordFile, RecordLimits, write_record
from pontil.runtime.receipts.record import RecordedRequest, first_line, last_line
from pontil.runtime.receipts.signing import ReceiptSigner, read_record

SIGNER = ReceiptSigner(b"\x07" * 32)


def record() -> bytes:
    """Return a record of one request without answers, which no server has to be asked for to be refused."""
    request = RecordedRequest("r", 1, 7, "/v1/completions", "-", {"prompt": "hi"}, [])
    text = first_line("r", redacted=False) + SIGNER.record_line(request, redacted=False)
    return text + last_line(1, hashlib.sha256(text).hexdigest())


@pytest.fixture
def nobody() -> str:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    return f"http://127.0.0.1:{port}"


def mistake(*words: str) -> tuple[int, str]:
    error: Any = CliRunner().invoke(cli, words, standalone_mode=False).exception
    assert "\n" not in error.message
    return error.exit_code, error.message


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (None, "cannot be read"),
        (b"", "it is no record: `pontil record` makes one"),
        (record()[:-9], "it was cut, or is still being written"),
        (record().replace(b'"hi"', b'"ho"'), "it is damaged"),
    ],
)
def test_a_file_that_cannot_be_replayed_is_said_before_any_server_is_asked(
    tmp_path: Path, nobody: str, data: bytes | None, says: str
) -> None:
    if data is not None:
        (tmp_path / "file").write_bytes(data)
    code, text = mistake("replay", str(tmp_path / "file"), "--against", nobody)
    assert code == 2 and says in text, text


def test_a_server_that_does_not_answer_is_no_difference(tmp_path: Path, nobody: str) -> None:
    (tmp_path / "file").write_bytes(record())
    code, text = mistake("replay", str(tmp_path / "file"), "--against", nobody)
    assert code == 2 and "cannot be asked" in text, text
    code, text = mistake("replay", str(tmp_path / "file"), "--public-key", "00" * 32)
    assert code == 2 and SIGNER.public_key.hex() in text, text
    code, text = mistake("replay", str(tmp_path / "file"), "--public-key", "zz")
    assert code == 2 and text.startswith("--public-key zz is no key"), "--key is the operator's here"


def test_a_record_replaces_no_file_and_leaves_none(tmp_path: Path, nobody: str) -> None:
    (tmp_path / "there").write_text("mine")
    code, text = mistake("record", "--url", nobody, "-o", str(tmp_path / "there"))
    assert code == 2 and "is there already" in text and (tmp_path / "there").read_text() == "mine"
    code, text = mistake("record", "--url", nobody, "-o", str(tmp_path / "new"))
    assert code == 1 and "did not answer" in text
    code, text = mistake("record", "--url", nobody, "-o", str(tmp_path / "no" / "new"))
    assert code == 2 and "cannot be written" in text
    code, text = mistake("record", "-o", str(tmp_path / "new"), "--within", "soon")
    assert code == 2 and text.startswith("--within must be")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_an_interrupt_ends_a_record_that_has_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = record().splitlines(keepends=True)[:-1]

    def interrupted(count: int) -> Iterator[bytes]:
        yield from lines[:count]
        raise KeyboardInterrupt

    limits = RecordLimits(9, 1, 1 << 20, 60.0)
    for count in range(2):
        monkeypatch.setattr(record_writer, "lines_from", lambda *given, count=count: interrupted(count))
        with pytest.raises(LaunchError, match="No request was answered"):
            write_record("", {}, tmp_path / "none", limits, lambda: None)
    monkeypatch.setattr(record_writer, "lines_from", lambda *given: interrupted(2))
    assert write_record("", {}, tmp_path / "new", limits, lambda: None).requests == 1
    assert read_record((tmp_path / "new").read_bytes()).requests and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("call", ["write", "fsync", "link"])
def test_a_disk_that_fills_leaves_no_part_of_a_record(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [*record().splitlines(keepends=True)[:-1]]
    monkeypatch.setattr(record_writer, "lines_from", lambda *given: iter(lines))
    limits = RecordLimits(1, 1, 1 << 20, 60.0)

    def full(*given: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as changed:
        changed.setattr(RecordFile if call == "write" else os, call, full)
        with pytest.raises(LaunchError, match="cannot be written .No space left on device.: it is not there"):
            write_record("", {}, tmp_path / "new", limits, lambda: None)
    assert not list(tmp_path.iterdir())
    assert write_record("", {}, tmp_path / "new", limits, lambda: None).requests == 1
    assert read_record((tmp_path / "new").read_bytes()).requests
