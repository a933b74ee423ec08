# SPDX-License-Identifier: Apache-2.0
"""A session of a record holds up nobody: what its reader does not take is left out, and said."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pontil.http.stream import recording
from pontil.http.stream.recording import MOST_WAITING, RecordingSession, RequestSample, SampleDesk
from pontil.runtime.errors import Unavailable
from pontil.runtime.proxy.siblings.recordings import RecordingExchange
from pontil.runtime.receipts.record import MOST_LINE
from pontil.runtime.receipts.signing import ReceiptSigner

SIGNER = ReceiptSigner(b"\x07" * 32)


def sample(session: RecordingSession, body: dict[str, Any]) -> RequestSample:
    return RequestSample(session, 1, "/v1/completions", "alice", 7, body)


def test_lines_wait_up_to_a_bound_and_those_beyond_it_are_counted() -> None:
    session = RecordingSession(1, redacted=False)
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
    session.put(None)
    assert json.loads(session.take()) == {"left_out": 1}


def test_one_of_so_many_is_chosen() -> None:
    session = RecordingSession(4, redacted=False)
    chosen = [number for _ in range(4000) if (number := session.chosen()) is not None]
    assert session.looked_at == 4000 and 700 < len(chosen) < 1300 and len(set(chosen)) == len(chosen)


def desk(place: int) -> SampleDesk:
    """The desk of one of three proxies, which begins to record for the first one after ten seconds."""
    made = SampleDesk(place=place, places=3)
    made.follow(WISH, 10.0)
    return made


WISH = b'{"one_in":1,"recording":"r","redacted":true}'


def test_proxies_give_requests_numbers_of_their_own_also_after_a_restart() -> None:
    first = RecordingSession(1, redacted=True, place=0, places=3)
    sessions = [first, *(desk(place).session for place in (1, 2))]
    numbers = [session.chosen() for session in sessions if session is not None for _ in range(100)]
    late = SampleDesk(place=1, places=3)
    late.follow(WISH, 10.1)
    assert late.session is not None
    numbers += [late.session.chosen() for _ in range(100)]
    assert len(set(numbers)) == 400


def test_what_another_proxy_recorded_is_told_and_what_it_left_out_is_counted() -> None:
    other, session = desk(1), RecordingSession(1, redacted=True)
    assert other.session is not None and (other.session.name, other.session.redacted) == ("r", True)
    assert other.part() == b""
    other.session.put(b"{}\n")
    other.session.put(None)
    session.put_part(other.part())
    assert session.take() == b"{}\n" and session.left_out == 1 and other.part() == b""
    other.session.put(b"{}\n")
    other.session.put(None)
    other.lose(other.part())
    session.put_part(other.part())
    assert session.left_out == 3 and not session.lines
    other.leave()
    assert other.session is None and other.part() == b""


def test_a_record_begins_with_its_first_line_whatever_is_answered_while_others_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "HEARD_WITHIN", 0.0)
    one = SampleDesk(RecordingExchange(tmp_path, "proxy:0"), places=2)

    def begin(wish: bytes) -> bool:
        assert one.session is not None
        one.session.put(b"{}\n")
        return True

    monkeypatch.setattr(one.exchange, "begin", begin)
    first, second = asyncio.run(one.open(1, redacted=False)).take().splitlines()
    assert "pontil_record" in json.loads(first) and second == b"{}"


def test_a_record_that_cannot_be_told_to_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "HEARD_WITHIN", 0.0)
    one, other = (SampleDesk(RecordingExchange(tmp_path, f"proxy:{number}"), number, 2) for number in range(2))
    asyncio.run(one.open(1, redacted=False))
    for desk in (one, other):
        with pytest.raises(Unavailable, match="another record is being made of this server"):
            asyncio.run(desk.open(1, redacted=False))
    assert other.session is None and one.session is not None
    one.close()
    lost = SampleDesk(RecordingExchange(tmp_path / "nowhere", "proxy:2"))
    with pytest.raises(Unavailable, match="cannot be told of a record .No such file"):
        asyncio.run(lost.open(1, redacted=False))
    assert lost.session is None and asyncio.run(other.open(1, redacted=False)) is other.session
