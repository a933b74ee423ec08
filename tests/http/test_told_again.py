# SPDX-License-Identifier: Apache-2.0
"""An answer that has ended is told again to one reader at a time, and its record is read beside the event loop. One
that goes on does so as its key's."""

import asyncio
import threading
from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from scripted_site import MODEL, HttpAnswer, ScriptedSite, site
from scripted_worker import DEADLINE, eventually, silent
from submitting import submit

from pontil.runtime.errors import RequestError
from pontil.runtime.proxy.admission.in_flight import LEFT
from pontil.runtime.proxy.requests.ticket import Allowance, Ticket
from pontil.runtime.proxy.resume.stream_journal import NoReader
from pontil.runtime.proxy.siblings.stream_record import StreamRecord, StreamRecords
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.tokenizer import Tokenizer

BODY = {"model": MODEL, "prompt": "hi", "max_tokens": 100, "stream": True}


@pytest.fixture
def keeping(tmp_path: Path, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    with site(tmp_path, tokenizer, resume_folder=str(tmp_path / "streams")) as made:
        made.worker()
        yield made


def ended(made: ScriptedSite) -> tuple[HttpAnswer, StreamRecords, str]:
    """Return an answer that has ended, the records, and its name there."""
    answer = made.ask("POST", "/v1/completions", BODY, {"pontil-resume": "1"})
    name, records = str(answer.headers["x-pontil-stream"]), made.proxy.streams.records
    assert answer.text and records is not None
    eventually(lambda: name not in made.proxy.streams.journals and records.is_free(name), "the end of the stream")
    return answer, records, name


def told_again(made: ScriptedSite, name: str) -> str:
    return made.ask("POST", "/v1/completions", {}, {"last-event-id": name}).text


def within(made: ScriptedSite, work: Awaitable[None]) -> None:
    """Do this in the event loop of the proxy."""
    asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, DEADLINE), made.loop).result(DEADLINE)


def test_one_reader_at_a_time(keeping: ScriptedSite) -> None:
    answer, records, name = ended(keeping)
    streams = keeping.proxy.streams

    async def tell() -> None:
        stream = streams.take_up(await streams.claim(name, Ticket()), NoReader(), Ticket())
        assert records.claim(name) is None, "it has a reader"
        assert stream.drain() and stream.is_over
        stream.cancel()
        stream.cancel()

    for _ in range(2):
        within(keeping, tell())
    assert told_again(keeping, name) == answer.text


def test_a_reader_that_leaves_while_the_record_is_read(keeping: ScriptedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, records, name = ended(keeping)
    reading, go, claim = threading.Event(), threading.Event(), records.claim

    def slow(wanted: str) -> StreamRecord | None:
        reading.set()
        assert go.wait(DEADLINE)
        return claim(wanted)

    async def leave() -> None:
        claiming = asyncio.ensure_future(keeping.proxy.streams.claim(name, Ticket()))
        while not reading.is_set():
            await asyncio.sleep(0.001)
        claiming.cancel()
        await asyncio.wait([claiming])
        assert claiming.cancelled()
        go.set()

    with monkeypatch.context() as slowed:
        slowed.setattr(records, "claim", slow)
        within(keeping, leave())
    assert told_again(keeping, name) == answer.text


def test_a_record_that_cannot_be_read_is_left_to_nobody(keeping: ScriptedSite) -> None:
    _, records, name = ended(keeping)
    streams = keeping.proxy.streams

    async def tell() -> None:
        claimed = await streams.claim(name, Ticket())
        assert isinstance(claimed, StreamRecord)
        claimed.lines[0]["params"] = {"n": "many"}
        with pytest.raises(RequestError, match="cannot be read"):
            streams.take_up(claimed, NoReader(), Ticket())
        assert name not in records.names(), "nobody else is told that it still has a reader"

    within(keeping, tell())


def test_a_stream_that_goes_on_has_the_weight_of_its_key(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with site(tmp_path, tokenizer, resume_folder=str(tmp_path / "streams"), fair_by="key") as made:
        made.worker(script=silent)
        streams = made.proxy.streams

        async def go_on() -> None:
            begun = submit(made.proxy, [5], SamplingParams(max_tokens=60, seed=1), allowance=Allowance(3.0))
            name, _ = streams.begin(begun, {"body": b""}, NoReader())
            before = begun.request.share
            streams.hand_over(streams.journals[name], LEFT)
            heavy = Ticket(allowance=Allowance(3.0))
            request = streams.take_up(await streams.claim(name, heavy), NoReader(), heavy).request
            assert request is not begun.request and request.share == before and before.weight == 3.0
            made.proxy.in_flight.cancel(request)

        within(made, go_on())


def test_who_was_not_told_of_its_stream_has_an_answer_from_a_proxy_that_leaves(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    """It could not ask another proxy for the rest."""
    with site(tmp_path, tokenizer, resume_folder=str(tmp_path / "streams")) as made, ThreadPoolExecutor() as threads:
        worker = made.worker(script=silent)
        asked = threads.submit(made.ask, "POST", "/v1/completions", BODY, {"pontil-resume": "1"})
        worker.submits.get(timeout=60)

        async def leave() -> None:
            made.proxy.streams.hand_over_all()
            made.proxy.drain()
            made.proxy.abandon()

        within(made, leave())
        assert asked.result(60).status == 503
        assert not made.proxy.streams.journals
