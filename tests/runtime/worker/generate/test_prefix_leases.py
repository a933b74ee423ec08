# SPDX-License-Identifier: Apache-2.0
"""Leases at a real worker: granted with the step that computes the prompt, kept through floods and kills, and told."""

import sys
import time
from collections.abc import Iterator, Sized
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from kept_places import WorkerPlace
from workers import ScriptedProxy, greedy, open_worker, prompt

from pontil.runtime.cache.adaptation import NOT_ADAPTED
from pontil.runtime.cache.leases.lease import LeasedPrompt, LeaseTerm, PrefixLease
from pontil.runtime.wire.lease_messages import DRAINS, EXTEND, LET_GO, MOVED, REFUND, RELEASE, RESUME, SLEEPS
from pontil.runtime.wire.messages import LeaseOrder, LeaseState, Message, Submit, Tokens
from pontil.runtime.worker.process.worker_request import WorkerRequest

# Four whole blocks and a part.
LONG = prompt(70)
# The code of leases that a step calls.
FILES = ("lease.py", "lease_book.py", "pinned_blocks.py", "prefix_leases.py")
ROOM: dict[str, Any] = {"kv_cache_memory": 1 << 20, "max_model_len": 128}


@pytest.fixture
def place(proxy: ScriptedProxy, model: Path, tmp_path: Path) -> Iterator[WorkerPlace]:
    made = WorkerPlace(proxy, model, tmp_path, "mixed:0", "mixed")
    yield made
    made.close()


def lease(name: str = "prefix-1", seconds: int = 600, tokens: int = len(LONG), **more: Any) -> dict[str, Any]:
    return {"id": name, "owner": "ada", "seconds": seconds, "tokens": tokens, "must": False} | more


def states(proxy: ScriptedProxy, name: str = "prefix-1") -> list[str]:
    return [one.state for one in proxy.leases if one.lease_id == name]


def ask(place: WorkerPlace, name: str, tokens: list[int], **more: Any) -> Any:
    place.proxy.submit(place.worker, name, tokens, greedy(0, ignore_eos=True), salt="same", **more)
    (answer,) = place.proxy.finish(name)
    return answer


def cached(place: WorkerPlace, name: str) -> int:
    answer = ask(place, name, LONG)
    return int(answer.frames[0].cached_tokens or 0)


def flood(place: WorkerPlace, name: str) -> None:
    """Compute prompts that fill the pool three times."""
    pool = place.worker.machine.pool
    for number in range(3 * pool.capacity // 7 + 1):
        ask(place, f"{name}-{number}", [3 + number, *prompt(109)])


def order(place: WorkerPlace, action: str, seconds: int = 0, **more: Any) -> None:
    message = LeaseOrder("proxy", place.worker.incarnation, "prefix-1", action, seconds, **more)
    assert place.proxy.server.send(message)


def test_a_leased_prefix_is_found_after_a_flood_and_an_ended_one_is_not(place: WorkerPlace) -> None:
    place.start(**ROOM)
    ask(place, "leased", LONG, lease=lease())
    (state,) = place.proxy.leases
    block = place.worker.leases.book.block_bytes
    assert (state.state, state.tokens, state.size, state.owner, state.proxy) == ("held", 64, 4 * block, "ada", "proxy")
    assert len(state.keys) == 4 * 16
    flood(place, "first")
    assert cached(place, "again") == 64
    order(place, RELEASE)
    place.proxy.turn_until(lambda: states(place.proxy) == ["held", "released"])
    flood(place, "second")
    assert cached(place, "gone") == 0
    place.worker.leases.book.check()


def test_a_lease_is_told_before_the_answer_that_it_was_asked_with(
    place: WorkerPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.start(**ROOM)
    told: list[str] = []
    hear = place.proxy.hear

    def listen(message: Message) -> None:
        told.append(type(message).__name__)
        hear(message)

    monkeypatch.setattr(place.proxy, "hear", listen)
    ask(place, "leased", LONG, lease=lease())
    assert told.index(LeaseState.__name__) < told.index(Tokens.__name__)


def test_what_must_be_leased_and_finds_no_room_is_refused_before_it_is_computed(place: WorkerPlace) -> None:
    worker = place.start(**ROOM, lease_client_memory=4096)
    before = worker.machine.engine.prompt_computed
    answer = ask(place, "leased", LONG, lease=lease(must=True))
    block = worker.leases.book.block_bytes
    said = f"the lease would hold {4 * block} bytes, and the key's leases hold 0 bytes of the 4096 that they may hold"
    assert [(one.status, one.reason) for one in answer.failures] == [(429, said)]
    assert worker.machine.engine.prompt_computed == before
    assert ask(place, "answered", LONG, lease=lease("other")).frames, "where it need not, it is answered all the same"
    assert [(one.state, one.reason) for one in place.proxy.leases] == [("refused", said)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"seconds": 0},
        {"tokens": 71},
        {"owner": None},
        {"must": 1},
        {"id": 3},
        {"age": -1.0},
        {"age": 3},
        {"moves": -1},
    ],  # fmt: skip
)
def test_a_lease_that_is_none_is_refused(place: WorkerPlace, wrong: dict[str, Any]) -> None:
    place.start(**ROOM)
    answer = ask(place, "leased", LONG, lease=lease() | wrong)
    assert [one.status for one in answer.failures] == [400] and not place.proxy.leases


def test_a_request_that_ends_early_gives_its_promised_room_back(place: WorkerPlace) -> None:
    worker = place.start(**ROOM)
    place.proxy.submit(worker, "cut", LONG, greedy(0), lease=lease())
    place.proxy.turn_until(lambda: bool(worker.leases.asked) or bool(place.proxy.leases))
    room = worker.leases.book.pins.most
    place.proxy.cancel(worker, "cut")
    place.proxy.turn_until(lambda: not worker.leases.asked and "cut" not in worker.requests)
    assert worker.leases.book.room == room - len(worker.leases.book.pins)


def calls_of_leases(place: WorkerPlace, name: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many calls each step of an answer makes into the code of leases."""
    counts, kind = list[int](), type(place.worker)
    step = kind.step

    def note(frame: FrameType, event: str, of: object) -> None:
        counts[-1] += event == "call" and frame.f_code.co_filename.endswith(FILES)

    def counted(*given: Any) -> None:
        counts.append(0)
        sys.setprofile(note)
        try:
            step(*given)
        finally:
            sys.setprofile(None)

    with monkeypatch.context() as patched:
        patched.setattr(kind, "step", counted)
        ask(place, name, LONG)
    return counts


def test_a_thousand_leases_add_nothing_to_a_step(place: WorkerPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = place.start(**ROOM)
    ask(place, "leased", LONG, lease=lease())
    before = calls_of_leases(place, "before", monkeypatch)
    book, (first,) = worker.leases.book, worker.leases.book.leases.values()
    for number in range(1000):
        term = LeaseTerm(first.term.size, first.term.began, 600 + number % 60)
        book.grant(PrefixLease(f"prefix-{number}a", "ada", first.keys, first.tokens, "proxy", term), first.term.began)
    place.proxy.turn_until(lambda: len(place.proxy.leases) > 1000)
    assert len(book.leases) == 1001 and sum(before) > 0
    assert calls_of_leases(place, "after", monkeypatch) == before


def test_a_lease_outlives_a_kill_where_its_blocks_do(place: WorkerPlace) -> None:
    """The proxy is the journal: it has the next process keep the blocks before anybody may take them."""
    place.start(**ROOM)
    ask(place, "leased", LONG, lease=lease())
    (state,) = place.proxy.leases
    # No block is free, and those of the lease were used longest ago: the next process warms up before it is told.
    flood(place, "before")
    place.record()
    place.end()
    place.start(**ROOM)
    order(place, RESUME, 600, owner="ada", keys=state.keys, age=5.0, prompt=state.prompt, salt=state.salt)
    place.proxy.turn_until(lambda: states(place.proxy) == ["held", "held"])
    assert place.proxy.leases[-1].prompt == state.prompt != b"" and place.proxy.leases[-1].salt == "same"
    assert 5.0 <= place.proxy.leases[-1].age < 5.0 + 60.0
    flood(place, "after")
    assert cached(place, "again") == 64


def test_a_lease_of_which_blocks_are_lost_is_refused_with_the_figure(place: WorkerPlace) -> None:
    place.start(**ROOM)
    ask(place, "leased", LONG, lease=lease())
    (state,) = place.proxy.leases
    order(place, RELEASE)
    place.proxy.turn_until(lambda: len(states(place.proxy)) == 2)
    flood(place, "after")
    order(place, RESUME, 600, owner="ada", keys=state.keys, age=5.0)
    place.proxy.turn_until(lambda: states(place.proxy)[-1] == "refused")
    assert place.proxy.leases[-1].reason == "only 0 of 64 tokens are here"


@pytest.mark.parametrize("since", [DRAINS, SLEEPS])
def test_a_worker_that_drains_keeps_its_leases_until_they_have_moved(place: WorkerPlace, since: str) -> None:
    worker = place.start(**ROOM)
    ask(place, "leased", LONG, lease=lease())
    worker.assigned_role.take(1, "mixed", 60.0, time.monotonic(), sleeps=since == SLEEPS)
    place.proxy.turn_until(lambda: worker.link.is_known)
    assert not worker.workload.outlook().is_idle and states(place.proxy) == ["held"]
    order(place, REFUND)
    place.proxy.turn_until(lambda: states(place.proxy) == ["held", "refunded"])
    assert place.proxy.leases[-1].reason == since
    assert worker.workload.outlook().is_idle and not worker.leases.book.pins


def test_a_worker_that_has_drained_for_too_long_refunds_its_leases(place: WorkerPlace) -> None:
    worker = place.start(**ROOM)
    ask(place, "leased", LONG, lease=lease())
    worker.assigned_role.take(1, "mixed", 0.0, time.monotonic())
    place.proxy.turn_until(lambda: states(place.proxy) == ["held", "refunded"])


def test_a_worker_that_only_stops_leaves_its_leases_to_its_successor(place: WorkerPlace) -> None:
    worker = place.start(**ROOM)
    ask(place, "leased", LONG, lease=lease())
    worker.leave()
    place.proxy.turn_until(lambda: bool(place.proxy.goodbyes))
    assert states(place.proxy) == ["held"]


def test_a_lease_is_pulled_from_a_worker_that_drains(
    place: WorkerPlace, proxy: ScriptedProxy, model: Path, tmp_path: Path
) -> None:
    """The other worker keeps it from then on, and it began when it did; a new proxy could have it moved again."""
    holder, other = place.start(**ROOM), open_worker(model, tmp_path, "mixed:1", "mixed", **ROOM)
    proxy.admit(other)
    ask(place, "leased", LONG, lease=lease())
    whole, params = LONG[:64], greedy(2, ignore_eos=True).to_wire()
    common = {"request_id": "moved", "attempt": 0, "prompt": whole, "sampling": params, "cache_salt": "same"}
    moved = {"lease": lease(tokens=64, must=True, age=5.0)}
    proxy.submit_halves(holder, other, common, common | moved)
    proxy.turn_until(lambda: states(proxy) == ["held", "held"])
    first, second = proxy.leases
    assert (second.sender, second.tokens, second.size) == (other.incarnation, 64, first.size)
    assert 5.0 <= second.age < 5.0 + 60.0 and second.keys == first.keys
    assert (second.prompt, second.salt, second.adapter) == (first.prompt, "same", "")
    assert LeasedPrompt(second.prompt).tokens == whole
    order(place, RELEASE)
    proxy.turn_until(lambda: states(proxy)[-1] == "released" and "moved" not in other.requests)
    assert other.decode.counts.bytes > 0 and len(other.leases.book.pins) == 4
    proxy.submit(other, "behind", LONG, greedy(1), salt="same")
    assert proxy.finish("behind")[0].frames[0].cached_tokens == 64


def test_a_new_proxy_is_told_of_all_leases_and_bills_them(place: WorkerPlace, proxy: ScriptedProxy) -> None:
    worker = place.start(**ROOM)
    ask(place, "leased", LONG, lease=lease())
    order(place, EXTEND, 900)
    proxy.turn_until(lambda: len(proxy.leases) == 2)
    proxy.incarnation = "next"
    proxy.turn_until(lambda: worker.link.proxy == "next" and len(proxy.leases) == 3 and len(proxy.leases_told) == 2)
    last = proxy.leases[-1]
    assert (last.state, last.proxy, last.seconds, len(last.keys)) == ("held", "next", 900, 64)
    assert [one.lease_ids for one in proxy.leases_told] == [[], ["prefix-1"]]


def has_more_than(told: Sized, count: int) -> bool:
    return len(told) > count


def test_the_proxy_that_bills_a_lease_hears_of_its_end_when_it_is_back(
    place: WorkerPlace, proxy: ScriptedProxy
) -> None:
    """A proxy that was cut off is told the end, once, and not merely that the lease is held no more."""
    worker = place.start(**ROOM)
    ask(place, "leased", LONG, lease=lease())
    for told in (1, 2):
        assert len(proxy.leases_told) == told
        worker.link.links[0].forget()
        worker.leases.obey(LeaseOrder("another", worker.incarnation, "prefix-1", RELEASE), time.monotonic())
        worker.leases.tick((), time.monotonic())
        proxy.turn_until(partial(has_more_than, proxy.leases_told, told))
        assert (states(proxy), proxy.leases[-1].proxy) == (["held", "released"], "proxy")
    assert not worker.leases.owed


def test_who_is_told_to_refund_a_lease_and_does_not_drain_says_why(place: WorkerPlace) -> None:
    place.start(**ROOM)
    ask(place, "leased", LONG, lease=lease())
    order(place, REFUND)
    place.proxy.turn_until(lambda: states(place.proxy) == ["held", "refunded"])
    assert place.proxy.leases[-1].reason == "the proxy that bills it had ended it before"


def test_leases_end_by_themselves(place: WorkerPlace) -> None:
    worker = place.start(**ROOM)
    ask(place, "leased", LONG, lease=lease(seconds=60))
    worker.leases.tick((), place.proxy.leases[-1].age + worker.leases.book.leases["prefix-1"].term.end)
    place.proxy.turn_until(lambda: states(place.proxy) == ["held", "expired"])
    assert place.proxy.leases[-1].age == 60.0


def test_the_lease_is_with_the_worker_that_was_given_it_last(place: WorkerPlace) -> None:
    """An order to let go is for a worker that was given the lease by fewer moves: one that is late, and comes when the
    lease is back again, ends nothing."""
    place.start(**ROOM)
    ask(place, "leased", LONG, lease=lease() | {"age": 1.5, "moves": 2})
    (state,) = place.proxy.leases
    assert (state.state, state.moves) == ("held", 2)
    order(place, LET_GO, moves=2)
    order(place, EXTEND, 7200)
    place.proxy.turn_until(lambda: states(place.proxy) == ["held", "held"])
    order(place, LET_GO, moves=3)
    place.proxy.turn_until(lambda: states(place.proxy) == ["held", "held", "refunded"])
    assert place.proxy.leases[-1].reason == MOVED
    adapted = {"adapter": "aa" * 32, "adapter_directory": "/b"}
    about = {"owner": "ada", "keys": state.keys, "prompt": state.prompt, **adapted}
    order(place, RESUME, 7200, **about, age=2.5, moves=4)
    place.proxy.turn_until(lambda: states(place.proxy) == ["held", "held", "refunded", "held"])
    assert (place.proxy.leases[-1].moves, place.proxy.leases[-1].adapter_directory) == (4, "/b")


def test_a_prompt_that_is_more_than_ids_is_leased_and_not_told(
    place: WorkerPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like one with an image in its second block: it is found by the same one, and nobody can compute it from its ids.
    One that no other request finds is not leased."""
    worker = place.start(**ROOM)
    make, image, salts = worker.stage.make_request, [1 << 127 | 7], list[str]()

    def shown(submit: Submit) -> WorkerRequest:
        request = make(submit)
        request.sequence.prefix.contents = [*LONG[:20], *image, *LONG[21:]]
        request.sequence.prefix.salt = salts[0] if salts else request.sequence.prefix.salt
        return request

    monkeypatch.setattr(worker.stage, "make_request", shown)
    ask(place, "leased", LONG, lease=lease())
    ask(place, "begun", LONG, lease=lease("prefix-2", tokens=16))
    first, second = place.proxy.leases
    assert (first.state, first.tokens, first.prompt) == ("held", 64, b"")
    assert (second.state, second.prompt) == ("held", LeasedPrompt.of(LONG[:16], "same", NOT_ADAPTED, "").ids)
    assert cached(place, "again") >= 64
    image[0] += 1
    assert 16 <= cached(place, "other") <= 20
    salts.append("its own")
    ask(place, "alone", LONG, lease=lease("prefix-3"))
    assert states(place.proxy, "prefix-3") == ["refused"]
