# SPDX-License-Identifier: Apache-2.0
"""Streams that are asked for again after a break: every event once and in order, wherever the connections end."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, cast

import pytest
from cutting_client import Cut, CuttingClient
from hypothesis import given
from hypothesis import strategies as st

from pontil.launcher.tools.bench.http_client import HttpClient
from pontil.launcher.tools.bench.stream_client import ConnectionBroke, RequestFailed, RequestRefused
from pontil.launcher.tools.chaos import continued_stream
from pontil.launcher.tools.chaos.chaos_answer import ChaosAnswer, difference
from pontil.launcher.tools.chaos.continued_stream import CONTINUED_WITHIN, ContinuedStream

WORDS = ("the", " boat", " turns", " home", " late")


def chunk(number: int) -> dict[str, Any]:
    finish = "length" if number == len(WORDS) - 1 else None
    return {"choices": [{"index": 0, "text": WORDS[number], "token_ids": [number], "finish_reason": finish}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": len(WORDS)}}
EVENTS = [json.dumps(one).encode() for one in (*map(chunk, range(len(WORDS))), USAGE)] + [b"[DONE]"]
LENGTH = sum(len(CuttingClient(EVENTS).event(number)) for number in range(len(EVENTS)))
CUTS = st.lists(st.builds(Cut, st.integers(1, LENGTH), st.integers(1, 100), st.sampled_from([200, 200, 409, 503])))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ask again without a pause."""
    monkeypatch.setattr(continued_stream, "AGAIN_EVERY", 0.0)
    yield


def stream_of(client: CuttingClient) -> ContinuedStream:
    return ContinuedStream(cast(HttpClient, client), "/v1/completions", {"prompt": "a"}, {"x-request-id": "n"})


def read(client: CuttingClient) -> ChaosAnswer:
    answer = ChaosAnswer()
    asyncio.run(stream_of(client).read(answer, 0.0))
    return answer


WHOLE = asyncio.run(stream_of(CuttingClient(EVENTS)).read(made := ChaosAnswer(), 0.0)) or made


@given(CUTS)
def test_every_event_comes_once_wherever_connections_break(cuts: list[Cut]) -> None:
    first = Cut(after=1)
    client = CuttingClient(EVENTS, [first, *cuts])
    answer = read(client)
    assert difference(WHOLE, answer) is None and answer.choices[0].text == "".join(WORDS)
    refused = sum(cut.status != 200 for cut in cuts[: len(client.asked) - 1])
    assert answer.continued == len(client.asked) - 1 - refused
    begun, *again = client.asked
    assert begun == {"x-request-id": "n", "pontil-resume": "1"}
    assert all(set(one) == {"x-request-id", "Last-Event-ID"} for one in again)


def test_an_id_whose_event_has_not_come_is_not_the_last_one() -> None:
    first = CuttingClient(EVENTS).event(0)
    client = CuttingClient(EVENTS, [Cut(after=len(first) + len(b"id: s:1\ndata: {"))])
    assert difference(WHOLE, read(client)) is None
    assert client.asked[1]["Last-Event-ID"] == "s:0"


def test_an_event_that_comes_again_is_a_difference() -> None:
    class Forgetful(CuttingClient):
        def event(self, number: int) -> bytes:
            return super().event(number) * (2 if number == 5 else 1)

    answer = read(Forgetful(EVENTS))
    assert difference(WHOLE, answer) == "the event s:5 came twice"


@pytest.mark.parametrize(
    ("cut", "kind"),
    [(Cut(after=0), ConnectionBroke), (Cut(status=400), RequestRefused), (Cut(status=503), RequestRefused)],
)
def test_where_no_head_came_there_is_nothing_to_continue(cut: Cut, kind: type[RequestFailed]) -> None:
    client = CuttingClient(EVENTS, [cut])
    with pytest.raises(kind):
        read(client)
    assert len(client.asked) == 1


def test_a_server_that_names_no_stream_has_none_to_continue() -> None:
    with pytest.raises(ConnectionBroke):
        read(CuttingClient(EVENTS, [Cut(after=1)], names=False))


def test_a_stream_that_is_refused_for_good_is_lost_and_not_cut_off() -> None:
    with pytest.raises(RequestFailed, match="its stream was not continued: HTTP 404") as raised:
        read(CuttingClient(EVENTS, [Cut(after=1), Cut(status=404)]))
    assert raised.type is RequestFailed


def test_the_time_in_which_nothing_comes_is_bounded() -> None:
    client = CuttingClient(EVENTS, [Cut(after=1)] * 100)
    stream = stream_of(client)
    # Each look at the clock is ten seconds after the one before.
    ticks = iter(range(0, 1000, 10))
    stream.now = lambda: float(next(ticks))
    with pytest.raises(RequestFailed, match=f"was not continued within {CONTINUED_WITHIN:.0f} s: reset") as raised:
        asyncio.run(stream.read(ChaosAnswer(), 0.0))
    assert raised.type is RequestFailed and 2 < len(client.asked) < 20


def test_a_stream_that_comes_on_has_its_time_anew() -> None:
    client = CuttingClient(EVENTS)
    client.cuts = [Cut(after=len(client.event(number)) + 1) for number in range(5)]
    stream = stream_of(client)
    ticks = iter(range(0, 1000, 25))
    stream.now = lambda: float(next(ticks))
    answer = ChaosAnswer()
    asyncio.run(stream.read(answer, 0.0))
    assert difference(WHOLE, answer) is None and answer.continued == 5
