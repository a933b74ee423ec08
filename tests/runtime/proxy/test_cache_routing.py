# SPDX-License-Identifier: Apache-2.0
"""Requests over real sockets go to the workers that have told of their prompts."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from live_proxy import LiveProxy, collect, submitted, until
from scripted_worker import ScriptedWorker, silent

from pontil.runtime.cache.prefix import full_keys
from pontil.runtime.proxy.requests.generation import Generation
from pontil.runtime.proxy.requests.request import NO_TICKET
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.proxy.routing.prompt_prefix import PORTION
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.wire.messages import PrefixDelta

PARAMS = SamplingParams(max_tokens=60, seed=1)
PROMPT = list(range(3, 163))
Play = Callable[..., None]


def told(worker: ScriptedWorker, prompt: list[int], salt: str = "", number: int = 0) -> PrefixDelta:
    keys = b"".join(key[:8] for key in full_keys(prompt, salt, 16))
    return PrefixDelta(worker.incarnation, worker.proxy, number, keys)


async def tells(live_proxy: LiveProxy, worker: ScriptedWorker, prompt: list[int], salt: str = "") -> None:
    held = live_proxy.proxy.registry.workers[worker.incarnation].prefixes
    worker.say(told(worker, prompt, salt))
    await until(lambda: len(held) == len(prompt) // 16)


def test_a_prompt_goes_to_the_worker_that_has_it(play: Play) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        one, other = await live_proxy.worker("mixed:0"), await live_proxy.worker("mixed:1")
        assert one.wants_prefixes
        await tells(live_proxy, other, PROMPT)
        for salt, route in (("", "mixed:1"), ("other tenant", "mixed:0"), ("", "mixed:1")):
            stream = live_proxy.submit(PROMPT + [7], PARAMS, cache_salt=salt)
            assert stream.route == route
            await collect(stream)
        assert live_proxy.value("pontil_routing_found_tokens_total") == 2 * len(PROMPT)
        assert live_proxy.value("pontil_routing_prompt_tokens_total") == 3 * (len(PROMPT) + 1)
        assert live_proxy.value("pontil_worker_prefix_entries", worker="mixed:1") == 10
        assert live_proxy.value("pontil_prompt_tokens_cached_total") == 0, "what is billed is what a worker states"

    play(scene)


def test_what_is_cached_is_no_load(play: Play) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0", script=silent)
        await tells(live_proxy, worker, PROMPT)
        registered = live_proxy.proxy.registry.workers[worker.incarnation]
        stream = live_proxy.submit([*PROMPT, 7, 8], PARAMS)
        await submitted(worker)
        assert registered.uncomputed == 2
        stream.cancel()
        assert registered.uncomputed == 0

    play(scene)


def test_a_request_that_broke_is_looked_for_again(play: Play) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        first = await live_proxy.worker("mixed:0", script=silent)
        await live_proxy.worker("mixed:1")
        holder = await live_proxy.worker("mixed:2")
        await tells(live_proxy, first, PROMPT)
        stream = live_proxy.submit([*PROMPT, 7], PARAMS)
        await submitted(first)
        await tells(live_proxy, holder, PROMPT)
        await asyncio.to_thread(first.fall_silent, live_proxy.proxy.registry)
        await collect(stream)
        assert stream.route == "mixed:2"

    play(scene)


def test_after_a_gap_the_worker_is_asked_to_begin_again(play: Play) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0")
        held = live_proxy.proxy.registry.workers[worker.incarnation].prefixes
        worker.say(told(worker, PROMPT, number=3))
        worker.say(told(worker, PROMPT, number=4))
        await until(lambda: worker.prefix_requests)
        await tells(live_proxy, worker, PROMPT)
        worker.say(PrefixDelta(worker.incarnation, worker.proxy, 1, b"not keys"[:7]))
        await until(lambda: worker.prefix_requests > 1)
        assert not len(held) and live_proxy.value("pontil_frames_dropped_total", reason="malformed") == 1
        assert worker.prefix_requests == 2, "it is not asked for each message"

    play(scene)


def test_a_stranger_tells_nothing(play: Play) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0")
        message = PrefixDelta("stranger", live_proxy.proxy.incarnation, 0, bytes(8))
        live_proxy.proxy.router.on_messages([message])
        assert not len(live_proxy.proxy.registry.workers[worker.incarnation].prefixes)

    play(scene)


def test_routing_by_load_asks_for_nothing(play: Play) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        one, other = await live_proxy.worker("mixed:0"), await live_proxy.worker("mixed:1")
        assert not one.wants_prefixes
        await tells(live_proxy, other, PROMPT)
        assert await live_proxy.proxy.dispatcher.lookup.prepare([PROMPT], NO_TICKET) == ()
        assert live_proxy.submit([*PROMPT, 7], PARAMS).route == "mixed:0"

    play(scene, routing="load")


@pytest.mark.parametrize("blocks", [3 * PORTION, 3])
def test_a_long_prompt_is_prepared_in_several_turns(play: Play, blocks: int) -> None:
    """The event loop has its turns while the keys of a prompt are computed that a worker has. One that nobody has, and
    a short one, take none."""
    long = [3 + place % 200 for place in range(16 * blocks)]

    async def scene(live_proxy: LiveProxy) -> None:
        one = await live_proxy.worker("mixed:0", max_model_len=100_000, num_blocks=9000)
        await live_proxy.worker("mixed:1", max_model_len=100_000, num_blocks=9000)
        assert await live_proxy.proxy.dispatcher.lookup.prepare([long], NO_TICKET) == ()
        await tells(live_proxy, one, long)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.get_running_loop().create_task(count())
        (prefix,) = await live_proxy.proxy.dispatcher.lookup.prepare([long], NO_TICKET)
        (cold,) = await live_proxy.proxy.dispatcher.lookup.prepare([[9, *long]], NO_TICKET)
        beside.cancel()
        assert len(prefix.keys) == blocks and len(cold.keys) == 1
        assert turns >= 3 if blocks > PORTION else turns == 0
        stream = live_proxy.proxy.submit(Ticket(), Generation(long, PARAMS, prefix=prefix))
        assert stream.route == "mixed:0"
        assert live_proxy.value("pontil_routing_found_tokens_total") == len(long) - 1

    play(scene)


def test_no_keys_are_computed_for_what_uses_no_cache(play: Play) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        await live_proxy.worker("mixed:0")
        holder: Any = await live_proxy.worker("mixed:1")
        await tells(live_proxy, holder, PROMPT)
        scored = SamplingParams(max_tokens=60, seed=1, prompt_logprobs=1)
        stream = live_proxy.submit([*PROMPT, 7], scored)
        assert stream.route == "mixed:0" and isinstance(work := stream.request.work, Generation)
        assert work.prefix is None

    play(scene)
