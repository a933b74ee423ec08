# SPDX-License-Identifier: Apache-2.0
"""Workers behind cut links: their requests go on elsewhere, and they are served again once they say Hello."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from live_proxy import TEXT, LiveProxy, balanced, collect, submitted, until
from scripted_worker import silent
from submitting import submit

from pontil.runtime.accounting.counts import DECODE, PREFILL, WHOLE
from pontil.runtime.proxy.fleet.registry import QUIET, Registry
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.wire.messages import SCHEMA, Heartbeat, Hello, Submit

PARAMS = SamplingParams(max_tokens=60, seed=1)
Play = Callable[..., None]
ONE = Hello("i1", SCHEMA, "decode:0", "decode", 11, "cpu", "tiny", "model", "kv", "ipc:///e", 16, 10, 4, 512, 256)


def beat(sender: str, proxy: str, *lost: str) -> Heartbeat:
    return Heartbeat(sender, proxy, 0, 0, 99, 0, {}, lost_peers=list(lost))


def test_a_worker_without_a_connection_is_lost_long_before_its_time_to_live(play: Play) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        first = await live_proxy.worker("mixed:0", script=silent)
        stream = live_proxy.submit([5], PARAMS)
        await submitted(first)
        await asyncio.to_thread(first.die)
        await live_proxy.worker("mixed:1")
        assert (await collect(stream))[0] == TEXT
        assert live_proxy.value("pontil_failovers_total", cause="silent") == 1
        balanced(live_proxy)

    play(scene, worker_ttl=3600.0)


def test_a_silent_worker_with_a_connection_is_kept() -> None:
    registry, asked = Registry(ttl=60.0), list[str]()
    registry.hello(ONE, 0.0)

    def reaches(worker: str) -> bool:
        asked.append(worker)
        return len(asked) < 3

    assert not registry.cut_off(QUIET, reaches) and not asked
    assert not registry.cut_off(QUIET + 0.1, reaches) and not registry.cut_off(30.0, reaches) and asked == ["i1"] * 2
    assert [one.hello for one in registry.cut_off(31.0, reaches)] == [ONE] and not registry.workers


def test_a_worker_that_let_go_of_its_requests_is_registered_anew(play: Play) -> None:
    """It said Hello before, which is only repeated; after that, it has lost what it had of this proxy."""

    async def scene(live_proxy: LiveProxy) -> None:
        first = await live_proxy.worker("mixed:0", script=silent)
        stream = live_proxy.submit([5], PARAMS)
        attempt = (await submitted(first)).attempt
        hello = live_proxy.proxy.registry.workers[first.incarnation].hello
        router = live_proxy.proxy.router
        router.on_messages([hello])
        assert stream.request.attempts.number == attempt
        router.on_messages([replace(hello, registration=1)])
        again = await submitted(first)
        assert again.attempt == attempt + 1 and live_proxy.proxy.registry.workers[first.incarnation].in_flight == 1
        late = first.tokens(replace(again, attempt=attempt), 0, [7])
        router.on_messages([late])
        assert live_proxy.value("pontil_frames_dropped_total", reason="stale") == 1
        stream.cancel()

    play(scene)


def test_a_pair_whose_link_is_cut_is_used_again_once_it_is_not(play: Play) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        prefill = await live_proxy.worker("prefill:0", script=silent)
        decode = await live_proxy.worker("decode:0", script=silent)
        proxy = live_proxy.proxy

        async def phases_of_next() -> set[str]:
            stream = submit(proxy, [5], PARAMS)
            await until(lambda: stream.request.attempts.phases)
            phases = set(stream.request.attempts.phases.values())
            stream.cancel()
            return phases

        assert await phases_of_next() == {PREFILL, DECODE}
        proxy.router.on_messages([beat(decode.incarnation, proxy.incarnation, prefill.incarnation, "gone")])
        assert not [row for row in proxy.self_test.routes() if len(row.phases) == 2]
        for _ in range(3):
            assert await phases_of_next() == {WHOLE}
        proxy.router.on_messages([beat(decode.incarnation, proxy.incarnation)])
        assert await phases_of_next() == {PREFILL, DECODE}

    play(scene, disagg="always")


def test_the_process_that_has_a_dead_ones_address_is_another(play: Play) -> None:
    """A host that died comes back as another machine: what its predecessor still sends, or is sent, is stale."""

    async def scene(live_proxy: LiveProxy) -> None:
        first = await live_proxy.worker("mixed:0", script=silent)
        stream = live_proxy.submit([5], PARAMS)
        submit: Submit = await submitted(first)
        await asyncio.to_thread(first.die)
        await live_proxy.worker("mixed:0")
        assert (await collect(stream))[0] == TEXT
        before = live_proxy.value("pontil_frames_dropped_total", reason="stale")
        router = live_proxy.proxy.router
        router.on_messages([first.tokens(submit, 0, [7]), replace(first.tokens(submit, 0, [7]), receiver="older")])
        assert live_proxy.value("pontil_frames_dropped_total", reason="stale") == before + 2
        balanced(live_proxy)

    play(scene)


def test_what_a_worker_let_go_of_is_not_taken_off_the_load_of_its_next_registration(play: Play) -> None:
    """A prompt is handed over, the prefill worker's link breaks, and it is back before the answer ends."""

    async def scene(live_proxy: LiveProxy) -> None:
        prefill = await live_proxy.worker("prefill:0", script=silent)
        decode = await live_proxy.worker("decode:0", script=silent)
        proxy = live_proxy.proxy
        stream = live_proxy.submit([5], PARAMS)
        submit = await submitted(decode)
        router, workers = proxy.router, proxy.registry.workers
        router.on_messages([decode.tokens(submit, 0, [7], prompt_tokens=1, cached_tokens=0)])
        hello = workers[prefill.incarnation].hello
        router.on_messages([replace(hello, registration=1)])
        assert stream.request.attempts.number == submit.attempt, "the prefill worker is needed no more"
        other = live_proxy.submit([6], PARAMS)
        await until(lambda: other.request.attempts.phases)
        assert workers[prefill.incarnation].in_flight == workers[prefill.incarnation].taken == 1
        stream.cancel()
        assert workers[prefill.incarnation].in_flight == workers[prefill.incarnation].taken == 1
        other.cancel()
        assert workers[prefill.incarnation].in_flight == workers[decode.incarnation].in_flight == 0

    play(scene, disagg="always")
