# SPDX-License-Identifier: Apache-2.0
"""Handoffs between workers of different numbers of ranks (H5, H6)."""

import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from effort import by_default
from hostile_connector import HostileConnector, Mischief, PullAtOnce
from pools import wait_for
from rank_groups import Open, RankPair

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config.worker_config import DEADLINES
from pontil.runtime.disaggregation.joint_connector import PEER_ENDED
from pontil.runtime.disaggregation.rank_orders import RankOrders
from pontil.runtime.disaggregation.receiver import DRAIN_TIMEOUT
from pontil.runtime.disaggregation.sender import PrefillResult
from pontil.runtime.disaggregation.states import ReceiveEvent, ReceiveState, SendEvent, SendState
from pontil.runtime.errors import TransferError
from pontil.runtime.transfer.connector import Pull
from pontil.runtime.transfer.grants import Grants
from pontil.runtime.transfer.shm.connector import ShmConnector
from pontil.runtime.wire.messages import ChunkReady, RankDone, RankPlan

DONE = PrefillResult(computed=48, first_tokens=[7], prompt_tokens=48, cached_tokens=0, seconds=0.5, choices=[0])
SIZES = ((1, 1), (1, 2), (2, 1), (2, 2), (2, 4), (4, 2), (1, 4), (4, 1))
THEIRS, OURS = [3, 4, 9], [5, 6, 1]
Pair = Callable[..., RankPair]


def fits(heads: int, ranks: int) -> bool:
    return heads % ranks == 0 or ranks % heads == 0


DIVISIONS = [(giving, taking, heads, kind) for giving, taking in SIZES for heads in (1, 2, 3, 4, 8)
             for kind in ("shm", "tcp", "guarded") if fits(heads, giving) and fits(heads, taking)]  # fmt: skip
BY_ONE = [one for one in DIVISIONS if one[3] == "shm" or one[2] == 4]


@pytest.fixture
def pair() -> Iterator[Pair]:
    made: list[RankPair] = []

    def open_pair(*told: object, **more: object) -> RankPair:
        made.append(RankPair(*told, **more))  # type: ignore[arg-type]
        return made[-1]

    yield open_pair
    for one in made:
        one.close()


def hostile(choose: Callable[[int], Mischief]) -> Open:
    """Return a function that opens connectors whose pulls have these faults, by rank."""

    def open_connector(rank: int, storage: KVStorage, wake: Callable[[], None], grants: Grants) -> HostileConnector:
        made = HostileConnector(storage, wake, PullAtOnce)
        made.choose = lambda: choose(rank)
        return made

    return open_connector


def arrived(one: RankPair, ours: list[int] = OURS, theirs: list[int] = THEIRS) -> bool:
    """Return whether every taking rank has its heads of the blocks, replicas included."""
    given = one.theirs.whole(theirs)
    return all(
        torch.equal(storage.tensor[ours], given[:, :, :, storage.layout.kv_heads.start : storage.layout.kv_heads.stop])
        for storage in one.ours.storages
    )


@pytest.mark.parametrize("kind", by_default({"shm"}, ["shm", "tcp"]))
@pytest.mark.parametrize(("giving", "taking"), SIZES)
def test_every_rank_gets_the_latent(pair: Pair, giving: int, taking: int, kind: str) -> None:
    """One KV head in one plane, which all ranks hold."""
    one = pair(giving, taking, 1, kind, planes=1)
    one.hand_over(*one.begin(), THEIRS, OURS)
    one.settle()
    assert arrived(one)


@pytest.mark.parametrize(("giving", "taking", "heads", "kind"), by_default(BY_ONE, DIVISIONS))
def test_every_rank_gets_its_heads(pair: Pair, giving: int, taking: int, heads: int, kind: str) -> None:
    one = pair(giving, taking, heads, kind)
    rest = [
        [storage.shared[block].clone() for block in range(12) if block not in OURS] for storage in one.ours.storages
    ]
    sent, taken = one.begin()
    assert not arrived(one)
    one.hand_over(sent, taken, THEIRS, OURS)
    one.settle()
    assert taken.state is ReceiveState.COMPLETE, taken.error
    assert arrived(one) and one.receiving.notes == ["promote", "fetched"]
    assert taken.bytes == sum(3 * storage.layout.block_bytes for storage in one.ours.storages)
    for storage, before in zip(one.ours.storages, rest, strict=True):
        after = [storage.shared[block] for block in range(12) if block not in OURS]
        assert all(map(torch.equal, after, before))
    one.kv_sender.heard("t", sent.epoch, SendEvent.FETCHED, 0.0)
    one.give()
    for storage, grants in zip(one.theirs.storages, one.theirs.grants, strict=True):
        assert int(storage.epochs[sent.slot]) == one.kv_sender.last_epoch and not grants.opened


@pytest.mark.parametrize(("giving", "taking"), [(1, 2), (2, 1), (4, 2)])
def test_packed_blocks_keep_each_head_in_one_piece(pair: Pair, giving: int, taking: int) -> None:
    one = pair(giving, taking, packed=True)
    one.hand_over(*one.begin(), THEIRS, OURS)
    one.settle()
    assert arrived(one)


def test_digests_are_one_for_each_block_between_single_ranks_and_else_one_for_each_group(pair: Pair) -> None:
    for giving, taking, groups in ((1, 1, 1), (2, 1, 2), (1, 2, 2), (2, 2, 2), (2, 4, 4)):
        one = pair(giving, taking)
        one.kv_sender.hold(one.begin()[0], THEIRS, DONE, 0.0)
        one.give()
        (handoff,) = one.messages()
        assert len(handoff.digests) == groups * len(THEIRS)
        if groups == 1:
            assert handoff.digests == one.theirs.storages[0].digests(THEIRS)


@pytest.mark.parametrize(("giving", "taking", "wrong"), [(2, 1, 1), (1, 2, 1), (4, 2, 3), (2, 4, 2)])
def test_one_changed_byte_of_one_rank_is_found_out(pair: Pair, giving: int, taking: int, wrong: int) -> None:
    """`wrong` is a giving rank, whose bytes change after it stated their digest, or else a taking one."""
    chosen = hostile(lambda rank: Mischief.CORRUPT if rank == wrong else Mischief.NONE)
    one = pair(giving, taking, open_taking=None if wrong < giving else chosen)
    sent, taken = one.begin()
    one.kv_sender.hold(sent, THEIRS, DONE, 0.0)
    one.give()
    if wrong < giving:
        one.theirs.storages[wrong].shared[THEIRS[1], -1] += 1
    (handoff,) = one.messages()
    one.kv_receiver.announced(taken, handoff, OURS, 0.0)
    one.settle()
    assert taken.state is ReceiveState.FAILED and "not the ones that were sent" in str(taken.error)
    assert one.receiving.notes == ["free_blocks", "abandon", "go_on_without"]


@pytest.mark.parametrize("stalled", [0, 1])
def test_a_rank_that_stalls_stops_the_clock_for_all(pair: Pair, stalled: int) -> None:  # C14
    """Bytes that come to the other rank do not hide it."""
    one = pair(2, 2, open_taking=hostile(lambda rank: Mischief.STALL if rank == stalled else Mischief.NONE))
    sent, taken = one.begin(blocks=4)
    blocks = [3, 4, 9, 2]
    for second, count in enumerate((1, 2, 3), 1):
        one.kv_sender.announce(sent, blocks[:count], float(second))
        one.give()
        for message in one.messages():
            one.kv_receiver.announced(taken, message, [4 + message.first], float(second))
        one.take(float(second))
    one.take(1.0 + DEADLINES.kv_stall_timeout)
    assert taken.error is None
    one.take(1.1 + DEADLINES.kv_stall_timeout)
    assert "no bytes" in str(taken.error) and one.receiving.notes == []
    one.settle(7.0)
    assert one.receiving.notes == ["free_blocks", "abandon", "go_on_without"]


def test_a_rank_that_stalls_is_noticed_though_it_always_owes_an_answer(pair: Pair) -> None:
    """Plans follow each other, as in a worker that computes; it answers each, but never the last one."""
    one = pair(1, 2, open_taking=hostile(lambda rank: Mischief.STALL if rank == 1 else Mischief.NONE))
    one.ours.late.add(1)
    one.hand_over(*one.begin(), THEIRS, OURS)
    (taken,) = one.kv_receiver.open.values()
    now = 0.0
    while taken.error is None and now < 3 * DEADLINES.kv_stall_timeout:
        now += 0.1
        one.take(now)
    assert "no bytes" in str(taken.error) and now <= DEADLINES.kv_stall_timeout + 1.0
    one.ours.late.clear()
    one.settle(now)


def test_a_rank_that_computes_is_not_one_that_stalls(pair: Pair) -> None:
    one = pair(1, 2, open_taking=hostile(lambda rank: Mischief.NONE))
    one.hand_over(*one.begin(), THEIRS, OURS)
    one.ours.stopped.add(1)
    (taken,) = one.kv_receiver.open.values()
    for second in range(1, 30):
        one.take(float(second))
    assert taken.error is None
    one.ours.stopped.clear()
    one.settle(30.0)
    assert taken.state is ReceiveState.COMPLETE


def test_a_rank_that_never_answers_leaves_the_blocks_and_stops_the_worker(pair: Pair) -> None:  # H7
    one = pair(1, 2)
    one.hand_over(*one.begin(), THEIRS, OURS)
    one.ours.stopped.add(1)
    one.take(DEADLINES.kv_transfer_timeout)
    (taken,) = one.kv_receiver.open.values()
    assert "not complete" in str(taken.error)
    one.take(DEADLINES.kv_transfer_timeout + DRAIN_TIMEOUT)
    assert one.receiving.notes == ["stop_worker"]


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("event", [None, ReceiveEvent.CANCELLED])
def test_blocks_are_let_go_when_the_last_rank_has_ended(pair: Pair, failing: int, event: ReceiveEvent | None) -> None:
    """One rank fails at once, the other goes on writing for a while."""
    one = pair(1, 2, open_taking=hostile(lambda rank: Mischief.ERROR if rank == failing else Mischief.SCRIBBLE))
    one.hand_over(*one.begin(), THEIRS, OURS)
    (taken,) = one.kv_receiver.open.values()
    if event is not None:
        one.kv_receiver.end("t", event, 0.0)
    while taken.pending:
        assert "free_blocks" not in one.receiving.notes
        one.take()
    assert taken.state is (ReceiveState.FAILED if event is None else ReceiveState.CANCELLED)
    written = [bool((storage.shared[OURS] == 0xAA).all()) for storage in one.ours.storages]
    assert written[1 - failing] and "free_blocks" in one.receiving.notes


def test_reports_that_come_twice_or_too_late_or_of_strangers_say_nothing(pair: Pair) -> None:  # C6
    one = pair(1, 2)
    one.hand_over(*one.begin(), THEIRS, OURS)
    kept: list[RankDone] = []
    take = one.ours.connector.take

    def twice(done: RankDone) -> None:
        kept.append(done)
        for told in (done, done, replace(done, rank=0), replace(done, rank=2), replace(done, rank=-1)):
            take(told)

    one.ours.connector.take = twice  # type: ignore[method-assign]
    one.settle()
    assert one.receiving.notes == ["promote", "fetched"] and arrived(one)
    for done in kept:
        take(done)
        one.theirs.pools.take(replace(done, digests=[[1, 5], [77, 1], []]))
    one.kv_receiver.poll(0.0)
    connector = one.ours.connector
    assert one.receiving.notes == ["promote", "fetched"]
    assert not (connector.ordered or connector.peers["P"].waiting or one.theirs.pools.unanswered)
    assert not any(follower.pulls for follower in one.ours.followers.values())


@pytest.mark.parametrize(
    "told",
    [{}, {"error": 5}, {"digests": None}, {"digests": [1]}, {"digests": ["x"] * 6}, {"epoch": "0"}, {"bytes": None}],
)
def test_a_report_in_another_form_fails_the_transfer(pair: Pair, told: dict[str, Any]) -> None:
    one = pair(1, 2)
    one.hand_over(*one.begin(), THEIRS, OURS)
    (taken,) = one.kv_receiver.open.values()
    sound = {"error": None, "epoch": taken.epoch, "bytes": 1, "seconds": 0.0, "digests": [1, 2, 3]}
    for ticket in list(one.ours.connector.ordered):
        told = (sound | told if told else {}) | {"ticket": ticket}
        one.ours.connector.take(RankDone("f", "d", 1, 1, pulls=[told, {"ticket": "x"}, {}]))
    one.settle()
    assert taken.state is ReceiveState.FAILED and taken.error


def test_an_order_in_another_form_ends_the_follower(pair: Pair) -> None:
    (follower,) = pair(1, 2).ours.followers.values()
    wrong: list[dict[str, Any]] = [
        {"pulls": [{}]}, {"epochs": [[1]]}, {"grants": [{}]}, {"cleared": [[1, 2, 3]]}, {"published": [[]]},
        {"erased": [3]},
    ]  # fmt: skip
    for fields in wrong:
        with pytest.raises(TransferError, match="cannot be read"):
            follower.obey(RankPlan("d", "f", 1, **fields))


@pytest.mark.parametrize("kind", ["shm", "tcp"])
def test_a_peer_that_one_rank_cannot_reach_is_given_up(pair: Pair, kind: str) -> None:
    one = pair(2, 2, kind=kind)
    descriptor = deepcopy(one.theirs.connector.register())
    descriptor["pools"][1]["blocks"] = "many"
    one.ours.connector.attach("Q", descriptor)
    assert one.ours.connector.unreachable() == {}
    one.take()
    assert "'blocks'" in one.ours.connector.unreachable()["Q"] and one.ours.connector.lost() == ["Q"]
    pull = Pull("Q", [(1, 1)], 0)
    one.ours.connector.pull(pull)
    deadline = time.monotonic() + 10
    while pull.result is None and time.monotonic() < deadline:
        one.take()
        one.ours.wakeup.wait(0.1)
    one.ours.connector.detach("Q")
    assert "gone" in str(pull.end.error) and one.ours.connector.unreachable() == {}


@pytest.mark.parametrize(
    "descriptor",
    [
        {"kind": "ranks"},
        {"kind": "ranks", "pools": []},
        {"kind": "ranks", "pools": [1, 2]},
        {"kind": "ranks", "pools": {"0": {}}},
        {"kind": "ranks", "pools": [{}] * 3},
        {"kind": "ranks", "pools": [{}] * 70000},
        {"kind": "ranks", "pools": [{}, {}]},
        {"kind": "ranks", "pools": [{"kind": "ranks", "pools": []}, {}]},
    ],
    ids=lambda descriptor: str(descriptor)[:40],
)
def test_descriptors_of_ranks_that_say_nothing_are_refused(pair: Pair, descriptor: dict[str, Any]) -> None:
    one = pair(2, 1)
    with pytest.raises(TransferError):
        one.ours.connector.attach("Q", descriptor)
    own = one.ours.transports[0]
    assert isinstance(own, ShmConnector) and set(own.peers) == {"P/0", "P/1"}


def test_what_was_announced_waits_for_all_ranks_and_goes_out_in_order(pair: Pair) -> None:
    one = pair(2, 1)
    sent, _ = one.begin()
    other = one.kv_sender.begin("u", "D", 0.0)
    assert other is not None
    one.kv_sender.announce(sent, THEIRS[:1], 0.0)
    one.kv_sender.announce(other, [7], 0.0)
    one.kv_sender.hold(sent, THEIRS, DONE, 0.0)
    assert list(one.messages()) == [] and sent.state is SendState.HELD
    one.give()
    assert [(type(told).__name__, told.transfer_id) for told in one.messages()] == [
        ("ChunkReady", "t"), ("ChunkReady", "u"), ("Handoff", "t"),
    ]  # fmt: skip


def test_a_transfer_that_ends_meanwhile_announces_nothing(pair: Pair) -> None:
    one = pair(2, 1)
    sent, _ = one.begin()
    one.kv_sender.hold(sent, THEIRS, DONE, 0.0)
    one.kv_sender.release("t", SendEvent.DROPPED, 0.0)
    one.give()
    assert list(one.messages()) == [] and not one.kv_sender.announcements and not one.theirs.pools.unanswered


def test_a_driver_that_gets_other_digests_than_it_asked_for_ends(pair: Pair) -> None:
    one = pair(2, 1)
    one.kv_sender.hold(one.begin()[0], THEIRS, DONE, 0.0)
    one.theirs.pools.take(RankDone("f", "d", 1, 1, digests=[[1, 5]]))
    with pytest.raises(TransferError, match="digests"):
        one.kv_sender.flush()


def test_every_rank_bumps_its_cell_before_anything_else_of_the_plan(pair: Pair) -> None:
    """A follower that still has the old blocks has the old epoch: the orders go out together."""
    one = pair(2, 1)
    sent, taken = one.begin()
    one.hand_over(sent, taken, THEIRS, OURS)
    one.settle()
    one.kv_sender.heard("t", sent.epoch, SendEvent.FETCHED, 0.0)
    follower = one.theirs.storages[1]
    assert int(follower.epochs[sent.slot]) == sent.epoch < int(one.theirs.storages[0].epochs[sent.slot])
    assert one.theirs.orders.waiting
    plan = one.theirs.plan()
    assert plan.epochs == [[sent.slot, one.kv_sender.last_epoch]] and not one.theirs.orders.waiting
    again = one.kv_receiver.begin("v", "P", 3, 0.0)
    one.theirs.followers[1].obey(plan)
    one.kv_receiver.announced(again, ChunkReady("P", "D", "v", sent.epoch, sent.slot, 0, [3], [1, 1]), [7], 0.0)
    one.exchange_until(lambda: again.ends_by is not None)
    one.settle(DEADLINES.kv_stall_timeout)
    assert "reused" in str(again.error)


def test_ranks_that_differ_about_the_epoch_fail_a_pull(pair: Pair) -> None:
    one = pair(2, 1)
    sent, taken = one.begin()
    one.kv_sender.hold(sent, THEIRS, DONE, 0.0)
    one.give()
    one.theirs.storages[1].epochs[sent.slot] += 100
    (handoff,) = one.messages()
    one.kv_receiver.announced(taken, handoff, OURS, 0.0)
    one.settle()
    assert "reused" in str(taken.error)


def test_orders_of_one_plan_are_carried_out_in_an_order_that_holds() -> None:
    orders = RankOrders(2)
    for act in (orders.attach, lambda peer, _: orders.detach(peer), orders.attach):
        act("P", {"kind": "shm"})
    orders.attach("Q", {})
    orders.detach("Q")
    assert orders.take() == (1, {"attached": {"P": {"kind": "shm"}}, "detached": ["P", "Q"]})
    assert orders.take() == (2, {}) and not RankOrders(1).waiting


def test_a_giving_rank_that_dies_fails_the_transfer_and_loses_the_peer(pair: Pair) -> None:  # H7
    """Its blocks cannot be read any more, and those of the others are of no use."""
    one = pair(2, 1, kind="tcp")
    sent, taken = one.begin()
    one.kv_sender.hold(sent, THEIRS, DONE, 0.0)
    one.give()
    one.theirs.transports[1].close()
    (handoff,) = one.messages()
    one.kv_receiver.announced(taken, handoff, OURS, 0.0)
    one.settle()
    assert taken.state is ReceiveState.FAILED and one.receiving.notes == ["free_blocks", "abandon", "go_on_without"]
    wait_for(lambda: one.ours.connector.unreachable() == {"P": PEER_ENDED})
