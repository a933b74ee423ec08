# SPDX-License-Identifier: Apache-2.0
"""Answers to several prompts that come whole or not at all: who gets nothing is billed nothing."""

import asyncio
from collections.abc import Callable

import pytest
from live_proxy import LiveProxy, submitted, until
from scripted_worker import silent

from pontil.runtime.errors import Unavailable
from pontil.runtime.proxy.requests.answer import WholeAnswer
from pontil.runtime.proxy.requests.generation import Generation
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.sampling_params import SamplingParams

PARAMS = SamplingParams(max_tokens=20, seed=1)
ENDS = {"finish_reason": "stop", "cached_tokens": 0, "computed_tokens": 1, "prompt_tokens": 1}


@pytest.mark.parametrize("whole", [False, True])
def test_of_an_answer_that_fails_no_prompt_is_billed(play: Callable[..., None], whole: bool) -> None:
    """The first prompt has its answer, the second one some tokens, the third one none when their worker is gone. A
    stream has told what there was, and is billed that."""

    async def scene(live_proxy: LiveProxy) -> None:
        worker, proxy = await live_proxy.worker("mixed:0", script=silent), live_proxy.proxy
        stream = proxy.submit(Ticket(), *(Generation([token], PARAMS) for token in (5, 6, 7)))
        reading = asyncio.ensure_future(stream.all()) if whole else None
        first, second, _ = [await submitted(worker) for _ in stream.requests]
        worker.say(worker.tokens(first, 0, [10, 11], generated_tokens=2, **ENDS))
        worker.say(worker.tokens(second, 0, [10]))
        await until(lambda: stream.requests[0].complete and stream.requests[1].times.begun)
        assert proxy.ledger.totals.requests == int(not whole)
        await asyncio.to_thread(worker.fall_silent, proxy.registry)
        await until(lambda: stream.end)
        if reading is not None:
            with pytest.raises(Unavailable, match="mixed:0 went silent"):
                await reading
        stream.cancel()
        sums = proxy.ledger.totals
        billed = (sums.prompt_tokens, sums.completion_tokens, sums.delivered)
        assert (sums.requests, sums.generated, billed) == (3, 3, (0, 0, 0) if whole else (2, 3, 3))
        assert (sums.discarded["unread"], proxy.ledger.imbalance) == (3 if whole else 0, 0)
        assert not proxy.ledger.entries and proxy.idle

    play(scene, max_attempts=1)


def test_what_a_client_had_computed_before_it_left_is_billed(play: Callable[..., None]) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        worker, proxy = await live_proxy.worker("mixed:0", script=silent), live_proxy.proxy
        stream = proxy.submit(Ticket(), *(Generation([token], PARAMS) for token in (5, 6)))
        reading = asyncio.ensure_future(stream.all())
        first, second = [await submitted(worker) for _ in stream.requests]
        worker.say(worker.tokens(first, 0, [10, 11], generated_tokens=2, **ENDS))
        worker.say(worker.tokens(second, 0, [10]))
        await until(lambda: stream.requests[0].complete and stream.requests[1].times.begun)
        reading.cancel()
        stream.cancel()
        sums = proxy.ledger.totals
        assert (sums.requests, sums.completion_tokens, sums.delivered, proxy.ledger.imbalance) == (2, 3, 3, 0)

    play(scene)


def test_nothing_is_closed_before_the_outcome_is_known() -> None:
    closed, answer = list[str](), WholeAnswer(3)
    answer.end(lambda: closed.append("one"), failed=False)
    answer.end(lambda: closed.append("two"), failed=False)
    assert not closed
    answer.end(lambda: closed.append("three"), failed=False)
    assert closed == ["one", "two", "three"] and not answer.failed
    answer = WholeAnswer(3)
    answer.end(lambda: closed.append("four"), failed=False)
    answer.end(lambda: closed.append("five"), failed=True)
    assert answer.failed and closed[3:] == ["four", "five"]
    answer.end(lambda: closed.append("six"), failed=False)
    assert closed[5:] == ["six"]


def test_who_has_a_part_of_an_answer_is_billed_what_there_was() -> None:
    closed, answer = list[str](), WholeAnswer(3)
    answer.end(lambda: closed.append("one"), failed=False)
    answer.begin()
    assert closed == ["one"]
    answer.end(lambda: closed.append("two"), failed=False)
    answer.end(lambda: closed.append("three"), failed=True)
    assert closed == ["one", "two", "three"] and not answer.failed
