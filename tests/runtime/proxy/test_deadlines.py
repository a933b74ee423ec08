# SPDX-License-Identifier: Apache-2.0
"""Deadlines count waiting, not work (C14): in virtual time."""

from dataclasses import replace
from typing import Any

import pytest
from proxy_configs import bare_config
from submitting import submit
from virtual_site import Clock, VirtualProxy, VirtualWorker

from pontil.runtime.errors import Unavailable
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Failed

PARAMS = SamplingParams(max_tokens=4, seed=1, temperature=0.0, ignore_eos=True)
LONG = [5] * 4_000


class DelayedWorker:
    """One worker that computes 80 tokens a second, with two seats: a long prompt takes 50 s."""

    def __init__(self, tokenizer: Tokenizer, **options: float) -> None:
        self.clock = Clock()
        given: dict[str, Any] = {"first_byte_timeout": 10.0, **options}
        self.proxy = VirtualProxy(bare_config(model="m", **given), tokenizer, self.clock)
        self.worker = VirtualWorker(self.proxy, "mixed:0", 2, 80.0, 0.05)

    def submit(self, prompt: list[int], params: SamplingParams) -> Stream:
        return submit(self.proxy, prompt, params)


@pytest.fixture
def slow(tokenizer: Tokenizer) -> DelayedWorker:
    return DelayedWorker(tokenizer)


def test_a_prompt_that_advances_lives(slow: DelayedWorker) -> None:
    stream = slow.submit(LONG, PARAMS)
    slow.clock.run_until(60.0)
    assert stream.request.complete and stream.request.times.first_token == pytest.approx(50.0, abs=1.0)


def test_a_prompt_that_does_not_advance_ends(slow: DelayedWorker) -> None:
    slow.worker.tells_progress = False
    stream = slow.submit(LONG, PARAMS)
    slow.clock.run_until(9.0)
    assert stream.end is None
    slow.clock.run_until(11.0)
    assert isinstance(stream.end, Unavailable) and "first token did not come within 10 s" in str(stream.end)


def test_computing_a_prompt_has_an_end_too(tokenizer: Tokenizer) -> None:
    slow = DelayedWorker(tokenizer, prefill_timeout=30.0)
    stream = slow.submit(LONG, PARAMS)
    slow.clock.run_until(31.0)
    assert isinstance(stream.end, Unavailable) and "not computed within 30 s" in str(stream.end)


def test_a_prompt_that_is_computed_again_for_a_stream_that_has_begun_lives_while_it_advances(
    tokenizer: Tokenizer,
) -> None:
    """Each token may take 20 s, and the prompt 50 s, after a death too; but not for ever."""
    for limit, lives in ((600.0, True), (30.0, False)):
        slow = DelayedWorker(tokenizer, stream_idle_timeout=20.0)
        slow.worker.pace = 5.0
        stream = slow.submit(LONG, PARAMS)
        slow.clock.run_until(52.0)
        assert stream.request.times.begun and stream.end is None
        slow.proxy.config = slow.proxy.dispatcher.config = replace(slow.proxy.config, prefill_timeout=limit)
        slow.worker.running.clear()
        slow.worker.say(Failed(slow.worker.name, slow.proxy.incarnation, stream.request.id, 0, "it ended"))
        slow.clock.run_until(160.0)
        assert stream.request.complete is lives
        assert lives or "the prompt was not computed within 30 s" in str(stream.end)


def test_what_comes_behind_a_long_prompt_is_told_how_long_it_takes(slow: DelayedWorker) -> None:
    """The first request is admitted, as nothing is measured yet; after that none is queued that cannot be served in
    time."""
    long = slow.submit(LONG, PARAMS)
    slow.clock.run_until(20.0)
    waiting = slow.submit(LONG, PARAMS)
    slow.clock.run_until(22.0)
    # 30 s of the first one are left, and a first token may take 10 s.
    with pytest.raises(Unavailable, match="about [0-9]+ s now, and up to 6 s are let in") as refused:
        slow.submit(LONG, PARAMS)
    assert 10.0 <= (refused.value.retry_after or 0.0) <= 30.0
    slow.clock.run_until(60.0)
    assert long.request.complete and isinstance(waiting.end, Unavailable)
    assert slow.proxy.idle


def test_a_stream_that_has_begun_waits_by_its_own_deadline(tokenizer: Tokenizer) -> None:
    slow = DelayedWorker(tokenizer, stream_idle_timeout=20.0)
    slow.worker.pace = 1_000.0
    stream = slow.submit([5] * 10, PARAMS)
    slow.clock.run_until(15.0)
    assert stream.request.times.begun and stream.end is None
    slow.clock.run_until(21.0)
    assert isinstance(stream.end, Unavailable) and "next token did not come within 20 s" in str(stream.end)
