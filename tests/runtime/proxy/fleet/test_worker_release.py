# SPDX-License-Identifier: Apache-2.0
"""Two releases behind one proxy: each request stays with the workers of one, and each release has its part of them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_proxy import TEXT, LiveProxy, collect, lost, submitted, until
from scripted_worker import ScriptedWorker, silent

from pontil.runtime.errors import Unavailable
from pontil.runtime.foundation.fair_share import ServiceClass
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.fleet.worker_release import ReleaseShares, WorkerRelease
from pontil.runtime.proxy.requests.generation import Generation
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.proxy.routing.policy import SPARE_SEATS
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.stages.graph.catalog import graph_named
from pontil.runtime.wire.messages import SCHEMA, Goodbye, Hello, RoleChange

PARAMS = SamplingParams(max_tokens=60, seed=1)
OLD = Hello("o", SCHEMA, "mixed:0", "mixed", 11, "cpu", "tiny", "model", "layout", "ipc:///e", 16, 10, 4, 512, 256)
NEW = replace(OLD, sender="n", name="mixed:1", model_fingerprint="other", kv_fingerprint="other", revision="2026-11")
Play = Callable[..., None]


@dataclass
class SeatedWorker:
    seats: int
    role: str = "mixed"
    taken: int = 0


async def leaves(live_proxy: LiveProxy, worker: ScriptedWorker) -> None:
    worker.say(RoleChange(worker.incarnation, worker.proxy, worker.role, True))
    await until(lambda: live_proxy.proxy.registry.is_leaving(worker.incarnation))


def test_another_model_is_refused_unless_its_revision_has_another_name() -> None:  # C8
    registry = Registry(ttl=5.0)
    assert registry.hello(OLD, 0.0) is None
    for none in (None, ""):
        reason = registry.hello(replace(NEW, revision=none), 0.0)
        assert reason is not None and "start it with the same --model" in reason
    assert registry.hello(NEW, 0.0) is None
    third = replace(NEW, sender="x", name="mixed:2", model_fingerprint="third")
    assert registry.hello(third, 0.0) is not None, "those of one revision are alike"
    assert registry.hello(replace(OLD, sender="y", name="mixed:3", version="0.2.0"), 0.0) is None
    another = registry.hello(replace(OLD, sender="z", name="mixed:4", version="0.2.0", dtype="float16"), 0.0)
    assert another is None, "the first of this revision does not say its dtype"


def test_a_model_of_several_stages_has_one_revision() -> None:
    graph = graph_named("speech-demo")
    assert graph is not None
    reason = Registry(5.0, graph=graph).hello(replace(NEW, node=graph.first), 0.0)
    assert reason is not None and "leave --revision out" in reason


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 8)), min_size=1, max_size=6))
def test_each_release_has_its_part_of_the_requests(workers: list[tuple[int, int]]) -> None:
    shares, seated = ReleaseShares(), dict[WorkerRelease, list[SeatedWorker]]()
    for number, count in workers:
        seated.setdefault(WorkerRelease(str(number)), []).append(SeatedWorker(count))
    seats = {release: sum(worker.seats for worker in each) for release, each in seated.items()}
    for _ in range(5 * sum(seats.values())):
        shares.enter(shares.choose(seated))
    assert all(4 * seats[release] <= shares.bound[release] <= 6 * seats[release] for release in seats)
    for release in list(shares.bound):
        for _ in range(shares.bound[release]):
            shares.leave(release)
    assert not shares.bound


def test_without_workers_there_is_no_release() -> None:
    assert ReleaseShares().choose({}) is None


def test_requests_go_to_both_and_each_reply_names_its_own(play: Play) -> None:
    """No pair is of two releases, and the fingerprint is that of the workers that answer."""

    async def scene(live_proxy: LiveProxy) -> None:
        await live_proxy.worker("prefill:0")
        await live_proxy.worker("decode:0")
        group = live_proxy.proxy.registry.generating
        prints = {group.snapshot().system_fingerprint("0"): "0"}
        await live_proxy.worker("prefill:1", revision="b", model_fingerprint="n", kv_fingerprint="n")
        await live_proxy.worker("decode:1", revision="b", model_fingerprint="n", kv_fingerprint="n")
        routes = set()
        for _ in range(12):
            snapshot = group.snapshot()
            stream = live_proxy.proxy.submit(Ticket(), Generation([5], PARAMS), snapshot=snapshot)
            number = prints.setdefault(snapshot.system_fingerprint("0") or "", "1")
            assert stream.route == f"prefill:{number}>decode:{number}"
            routes.add(stream.route)
            assert (await collect(stream))[0] == TEXT
        assert len(routes) == 1, "alone, each goes to the newer one"
        streams = [live_proxy.submit([5], PARAMS) for _ in range(8)]
        assert sorted(stream.route for stream in streams) == 4 * ["prefill:0>decode:0"] + 4 * ["prefill:1>decode:1"]
        await asyncio.gather(*map(collect, streams))
        assert not group.shares.bound
        assert {one.name for one in live_proxy.proxy.self_test.routes()} == {"prefill:0>decode:0", "prefill:1>decode:1"}

    play(scene)


def test_the_old_drains_as_the_new_comes(play: Play) -> None:
    """A drained release gets nothing new; its answers end where they began."""

    async def scene(live_proxy: LiveProxy) -> None:
        old = await live_proxy.worker("mixed:0", pace=0.002)
        begun = live_proxy.submit([5], PARAMS)
        await until(lambda: begun.request.times.begun)
        new = await live_proxy.worker("mixed:1", revision="b", model_fingerprint="n")
        await leaves(live_proxy, old)
        assert {live_proxy.submit([5], PARAMS).route for _ in range(6)} == {"mixed:1"}
        assert (await collect(begun))[0] == TEXT and begun.route == "mixed:0" and old.submits.qsize() == 1
        await until(lambda: new.submits.qsize() >= 1)

    play(scene)


def test_an_answer_that_has_begun_is_not_continued_by_another_release(play: Play) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        begun = await begun_by_the_old(live_proxy)
        old, stream = begun.old, begun.stream
        new = await live_proxy.worker("mixed:1", revision="b", model_fingerprint="n")
        live_proxy.proxy.dispatcher.retry(stream.request, "it died", "died")
        await leaves(live_proxy, old)
        live_proxy.proxy.dispatcher.resume()
        if stream.request.attempts.number == 1:
            live_proxy.proxy.dispatcher.retry(stream.request, "it died again", "died")
        assert stream.request.id in live_proxy.proxy.dispatcher.stranded and new.submits.empty()
        again = await live_proxy.worker("mixed:2")
        assert (await submitted(again)).delivered == [[7]] and new.submits.empty()
        stream.cancel()

    play(scene)


@dataclass
class BegunAnswer:
    """An answer that an old worker has begun, beside one of another release."""

    live_proxy: LiveProxy
    old: ScriptedWorker
    stream: Stream

    @property
    def waits(self) -> bool:
        self.live_proxy.proxy.tick()
        return self.stream.request.id in self.live_proxy.proxy.dispatcher.stranded

    async def leaves(self, worker: ScriptedWorker, *, for_good: bool) -> None:
        """Have a worker drain, end in order and be gone."""
        await leaves(self.live_proxy, worker)
        worker.say(Goodbye(worker.incarnation, worker.proxy, True, for_good))
        known = self.live_proxy.proxy.registry.workers[worker.incarnation]
        await until(lambda: known.contact.drained)
        lost(self.live_proxy, worker)

    async def fails(self) -> None:
        with pytest.raises(Unavailable, match="have left: try again"):
            await collect(self.stream)
        assert self.live_proxy.proxy.idle and not self.live_proxy.proxy.registry.generating.shares.bound


async def begun_by_the_old(live_proxy: LiveProxy) -> BegunAnswer:
    def begins(worker: ScriptedWorker, submit: object) -> object:
        yield worker.tokens(submit, 0, [7], prompt_tokens=1, cached_tokens=0)  # type: ignore[arg-type]

    old = await live_proxy.worker("mixed:0", script=begins)
    stream = live_proxy.submit([5], PARAMS)
    await until(lambda: stream.request.times.begun)
    return BegunAnswer(live_proxy, old, stream)


def test_nobody_waits_for_a_release_whose_last_worker_has_left_for_good(play: Play) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        begun = await begun_by_the_old(live_proxy)
        other = await live_proxy.worker("mixed:1")
        await live_proxy.worker("mixed:2", revision="b", model_fingerprint="n")
        await begun.leaves(other, for_good=True)
        assert live_proxy.proxy.registry.workers and not begun.waits, "the one that began it is there"
        await begun.leaves(begun.old, for_good=True)
        await begun.fails()

    play(scene)


def test_a_death_that_is_seen_after_its_successor_came_is_no_absence(play: Play) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        begun = await begun_by_the_old(live_proxy)
        dead = await live_proxy.worker("mixed:1")
        successor = await live_proxy.worker("mixed:1")
        await live_proxy.worker("mixed:2", revision="b", model_fingerprint="n")
        lost(live_proxy, dead)
        await begun.leaves(successor, for_good=True)
        await begun.leaves(begun.old, for_good=True)
        await begun.fails()

    play(scene)


@pytest.mark.parametrize("how", ["died", "restarts"])
def test_an_answer_waits_for_a_worker_of_its_release_that_may_come_back(play: Play, how: str) -> None:
    """It may be gone before the last one leaves for good."""

    async def scene(live_proxy: LiveProxy) -> None:
        begun = await begun_by_the_old(live_proxy)
        other = await live_proxy.worker("mixed:1")
        await live_proxy.worker("mixed:2", revision="b", model_fingerprint="n")
        if how == "died":
            lost(live_proxy, other)
        else:
            await begun.leaves(other, for_good=False)
        await begun.leaves(begun.old, for_good=True)
        assert begun.waits
        again = await live_proxy.worker("mixed:1")
        await until(lambda: not begun.waits)
        assert (await submitted(again)).delivered == [[7]]
        begun.stream.cancel()

    play(scene)


def test_an_answer_waits_where_no_other_release_serves(play: Play) -> None:
    """A service manager restarts launches too: that ends no release."""

    async def scene(live_proxy: LiveProxy) -> None:
        begun = await begun_by_the_old(live_proxy)
        await begun.leaves(begun.old, for_good=True)
        assert begun.waits
        await live_proxy.worker("mixed:1", revision="b", model_fingerprint="n")
        await begun.fails()

    play(scene)


def test_an_answer_of_which_the_client_has_a_part_is_not_continued_by_another_release(play: Play) -> None:
    """Its tokens may have been told by a proxy that ended before it recorded any."""

    async def scene(live_proxy: LiveProxy) -> None:
        old = await live_proxy.worker("mixed:0", script=silent)
        stream = live_proxy.submit([5], PARAMS)
        stream.request.ticket = replace(stream.request.ticket, has_part=True)
        await submitted(old)
        new = await live_proxy.worker("mixed:1", revision="b", model_fingerprint="n")
        await leaves(live_proxy, old)
        live_proxy.proxy.dispatcher.retry(stream.request, "it died", "died")
        assert not stream.request.times.begun and stream.request.id in live_proxy.proxy.dispatcher.stranded
        again = await live_proxy.worker("mixed:2")
        await submitted(again)
        assert new.submits.empty()
        stream.cancel()

    play(scene)


@pytest.mark.parametrize("service_class", ServiceClass)
def test_a_request_in_the_queue_goes_to_the_release_that_is_left(play: Play, service_class: ServiceClass) -> None:
    """So do those that give way, which have idle seats alone."""

    async def scene(live_proxy: LiveProxy) -> None:
        old = await live_proxy.worker("mixed:0", max_num_seqs=1, script=silent)
        busy = [live_proxy.submit([5], PARAMS) for _ in range(1 + SPARE_SEATS)]
        waits = live_proxy.submit([5], PARAMS, place=service_class.place())
        await leaves(live_proxy, old)
        assert waits.route == "-"
        await live_proxy.worker("mixed:1", revision="b", model_fingerprint="n")
        assert (await collect(waits))[0] == TEXT and waits.route == "mixed:1"
        for stream in busy:
            stream.cancel()

    play(scene)


def test_a_request_that_has_no_answer_yet_goes_to_the_release_that_is_left(play: Play) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        old = await live_proxy.worker("mixed:0", script=silent)
        stream = live_proxy.submit([5], PARAMS)
        await submitted(old)
        await live_proxy.worker("mixed:1", revision="b", model_fingerprint="n")
        await leaves(live_proxy, old)
        live_proxy.proxy.dispatcher.retry(stream.request, "it died", "died")
        assert (await collect(stream))[0] == TEXT and stream.route == "mixed:1"
        assert not live_proxy.proxy.registry.generating.shares.bound

    play(scene)
