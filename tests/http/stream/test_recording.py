# SPDX-License-Identifier: Apache-2.0
"""A session of a record holds up nobody: what its reader does not take is left out, and said."""

import json
from typing import Any

from pontil.http.stream.recording import MOST_WAITING, RecordingSession, RequestSample
from pontil.runtime.receipts.record import MOST_LINE
from pontil.runtime.receipts.signing import ReceiptSigner

SIGNER = ReceiptSigner(b"\x07" * 32)


def sample(session: RecordingSession, body: dict[str, Any]) -> RequestSample:
    return RequestSample(session, 1, "/v1/completions", "alice", 7, body)


def test_lines_wait_up_to_a_bound_and_those_beyond_it_are_counted() -> None:
    session = RecordingSession(1, redacted=False)
    assert json.loads(session.take())["pontil_record"] == 1
    assert session.take() == b"\n", "a sign of life"
    line = b"x" * (MOST_WAITING // 4 - 1) + b"\n"
    for _ in range(6):
        session.put(line)
    assert session.take() == line * 4 and session.waiting == 0
    assert json.loads(session.take()) == {"left_out": 2}
    session.put(line)
    assert session.take() == line


def test_a_request_without_a_line_is_left_out() -> None:
    session = RecordingSession(1, redacted=False)
    assert sample(session, {"prompt": "hi"}).line([], SIGNER) is not None
    assert sample(session, {"temperature": float("nan")}).line([], SIGNER) is None
    assert sample(session, {"prompt": "x" * MOST_LINE}).line([], SIGNER) is None
    session.take()
    session.put(None)
    assert json.loads(session.take()) == {"left_out": 1}


def test_one_of_so_many_is_chosen() -> None:
    session = RecordingSession(4, redacted=False)
    chosen = sum(session.chooses() for _ in range(4000))
    assert session.looked_at == 4000 and 700 < chosen < 1300
