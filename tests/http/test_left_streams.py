# SPDX-License-Identifier: Apache-2.0
"""Streams that a proxy lets go of: they wait for their readers, and end as what they are if none comes."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
from scripted_site import ScriptedSite
from scripted_worker import DEADLINE, ScriptedWorker, eventually, proper, silent
from stream_front import ASK, TEXT, Front, Reader, told

from pontil.runtime.errors import Unavailable
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.proxy.resume.stream_journal import NoReader, StreamJournal
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Message, Submit

PATH = "/v1/completions"
WINDOW = 0.5
# Tokens of a first attempt.
FIRST = 12


@pytest.fixture
def front(tmp_path: Path, tokenizer: Tokenizer, request: pytest.FixtureRequest) -> Iterator[Front]:
    made = Front(tmp_path, tokenizer, getattr(request, "param", 60.0))
    try:
        yield made
    finally:
        made.close()


def pausing(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
    """Answer with a few tokens, and with the rest in another attempt."""
    return proper(worker, submit) if any(submit.delivered) else islice(proper(worker, submit), FIRST)


def reader_left(site: ScriptedSite) -> None:
    """Wait until the proxy has seen that the reader of its only stream has left."""
    journals = site.proxy.streams.journals
    eventually(lambda: [journal.detached_at for journal in journals.values()] != [None], "a reader gone")


def left_reader(one: ScriptedSite) -> Reader:
    """Return a reader that has left its stream in the middle, once that is known."""
    first = Reader(one, PATH, ASK).read(9)
    first.leave()
    reader_left(one)
    return first


def fail_all(site: ScriptedSite) -> None:
    """End the only request of a proxy, as where no worker can serve it."""

    async def fail() -> None:
        (request,) = site.proxy.requests.values()
        site.proxy.in_flight.fail(request, Unavailable("no worker is left: try again later"))

    asyncio.run_coroutine_threadsafe(fail(), site.loop).result(DEADLINE)


@pytest.mark.parametrize("place", [0, 1])
def test_a_stream_that_cannot_be_served_while_nobody_reads_it_waits_for_its_reader(place: int, front: Front) -> None:
    sites = front.start(0, pace=0.03), front.start(1)
    one, first = sites[0], left_reader(sites[0])
    fail_all(one)
    assert not one.proxy.requests
    second = Reader(sites[place], PATH, {}, first.last)
    assert second.status == 200 and told(first, second.all()) == TEXT
    eventually(lambda: [row["state"] for row in front.rows()] == ["closed"], "a closed row")
    assert all(at.proxy.ledger.imbalance == 0 for at in sites)


def test_a_stream_of_which_nobody_has_a_part_waits_for_nobody(front: Front) -> None:
    """Its client has left before the first bytes: it does not know the stream's id."""
    one = front.start(0, pace=0.02)
    with closing(one.connect()) as connection:
        body = json.dumps(ASK | {"stop": [TEXT[:60] + "!"]}).encode()
        connection.request("POST", PATH, body, {"pontil-resume": "1"})
        eventually(lambda: [row.entry.delivered for row in one.proxy.requests.values()] > [3], "tokens")
    reader_left(one)
    fail_all(one)
    eventually(lambda: [row["state"] for row in front.rows()] == ["closed"], "a closed row")
    assert front.rows()[0]["completion_tokens"] == 0 and not one.proxy.streams.journals


def test_a_reader_that_is_back_is_told_to_come_later_and_can(front: Front) -> None:
    """Its stream cannot be served now, and it has heard nothing of that yet."""
    one, two = front.start(0, script=pausing), front.start(1, script=silent)
    first = Reader(one, PATH, ASK)
    while f":{FIRST}." not in str(first.last):
        assert first.next()
    first.leave()
    with ThreadPoolExecutor() as threads:
        back = threads.submit(Reader, two, PATH, {}, first.last)
        two.workers[0].submits.get(timeout=60)
        fail_all(two)
        refused = back.result(60)
    assert (refused.status, refused.response.getheader("retry-after") is not None) == (503, True)
    again = Reader(one, PATH, {}, first.last)
    assert again.status == 200 and told(first, again.all()) == TEXT
    eventually(lambda: [row["state"] for row in front.rows()] == ["closed"], "a closed row")
    assert front.rows()[0]["finish"] == "stop"


def test_a_reader_whose_stream_fails_while_it_comes_back_is_told_to_come_later(front: Front) -> None:
    one = front.start(0, pace=0.03)
    first = left_reader(one)
    streams, name = one.proxy.streams, str(first.stream)

    async def come_back() -> None:
        claimed = await streams.claim(name, Ticket())
        assert isinstance(claimed, StreamJournal)
        one.proxy.in_flight.fail(claimed.request, Unavailable("no worker is left: try again later"))
        stream = streams.take_up(claimed, NoReader(), Ticket())
        assert stream.drain() and isinstance(stream.error, Unavailable)
        stream.cancel()

    asyncio.run_coroutine_threadsafe(come_back(), one.loop).result(DEADLINE)
    assert told(first, Reader(one, PATH, {}, first.last).all()) == TEXT


def test_a_reader_that_comes_back_while_its_proxy_ends_is_told_to_come_later(front: Front) -> None:
    """Its stream is another proxy's by then: nobody here would say a word of it."""
    one, two = front.start(0, pace=0.03), front.start(1)
    first = left_reader(one)
    streams, name = one.proxy.streams, str(first.stream)

    async def come_back() -> None:
        claimed = await streams.claim(name, Ticket())
        streams.hand_over_all()
        with pytest.raises(Unavailable):
            streams.take_up(claimed, NoReader(), Ticket())
        streams.put_back(claimed)

    asyncio.run_coroutine_threadsafe(come_back(), one.loop).result(DEADLINE)
    assert told(first, Reader(two, PATH, {}, first.last).all()) == TEXT


@pytest.mark.parametrize("front", [WINDOW], indirect=True)
@pytest.mark.parametrize("finish", ["error", "cancelled"])
def test_a_stream_that_was_let_go_of_and_nobody_came_back_for_ends_as_what_it_is(finish: str, front: Front) -> None:
    """Its proxy lives: nothing was lost with it. All that was delivered is billed, under a label of its own."""
    one, two = front.start(0, pace=0.03), front.start(1)
    first = left_reader(one)
    if finish == "error":
        fail_all(one)
    else:
        assert Reader(two, "/v1/chat/completions", {}, first.last).status == 400
    eventually(lambda: [row["state"] for row in front.rows()] == ["closed"], "a closed row")
    (row,) = front.rows()
    assert row["finish"] == finish and 0 < row["completion_tokens"] == row["delivered"] <= row["generated"]
    eventually(lambda: Reader(two, PATH, {}, first.last).status == 404, "no stream")
    assert one.proxy.ledger.imbalance == two.proxy.ledger.imbalance == 0
