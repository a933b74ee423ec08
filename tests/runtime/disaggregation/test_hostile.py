# SPDX-License-Identifier: Apache-2.0
"""KV sender and KV receiver against a hostile connector, a network that loses messages, and a simulated clock.

In every run a transfer ends: COMPLETE with the right bytes, or FAILED or CANCELLED. Every block of both pools is freed,
and no copier ever writes into a freed block. Freed blocks are overwritten at once on both sides.
"""

from collections.abc import Callable

import pytest
import torch
from effort import examples
from hostile_connector import FINITE, HostileConnector, Mischief, PullAtOnce
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import LAYOUT

from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import EPOCH_SLOTS, KVStorage
from pontil.runtime.config.worker_config import DEADLINES
from pontil.runtime.disaggregation.rank_pools import RankPools
from pontil.runtime.disaggregation.receiver import DRAIN_TIMEOUT, KVReceiver, ReceiveTransfer
from pontil.runtime.disaggregation.sender import KVSender, PrefillResult, SendTransfer
from pontil.runtime.disaggregation.states import ReceiveEvent, ReceiveState, SendEvent, SendState
from pontil.runtime.wire.messages import ChunkReady, Handoff

CPU = torch.device("cpu")
BLOCKS = 12
FREE_BYTE = 0xEE
ENOUGH = 2 * DEADLINES.kv_transfer_timeout


class Stopped(Exception):
    """Raised where the worker would end its process."""


class Pools:
    """Both sides of some transfers, each prompt of a few blocks with its own bytes. `now` is moved by the test."""

    def __init__(self, choose: Callable[[], Mischief] = lambda: Mischief.NONE, backwards: bool = False) -> None:
        self.now = 0.0
        self.theirs, self.ours = KVStorage(LAYOUT, BLOCKS, CPU), KVStorage(LAYOUT, BLOCKS, CPU)
        self.their_pool, self.our_pool = BlockPool(BLOCKS), BlockPool(BLOCKS)
        self.source = PullAtOnce(self.theirs, lambda: None)
        self.connector = HostileConnector(self.ours, lambda: None, PullAtOnce)
        self.connector.choose, self.connector.backwards = choose, backwards
        self.connector.attach("P", self.source.register())
        self.kv_sender = KVSender(RankPools(self.theirs), "P", self)
        self.kv_receiver = KVReceiver(self.connector, RankPools(self.ours), self)
        self.sends: dict[str, SendTransfer] = {}
        self.transfers: dict[str, ReceiveTransfer] = {}
        self.sizes: dict[str, int] = {}
        self.given: dict[str, list[int]] = {}
        self.taken: dict[str, list[int]] = {}
        self.wire: list[ChunkReady | Handoff] = []
        self.lossy: Callable[[], bool] = lambda: False
        self.ours.shared[:] = FREE_BYTE

    def close(self) -> None:
        self.source.close()
        self.connector.close()

    # Callbacks of the KV sender.

    def free_blocks(self, one: SendTransfer | ReceiveTransfer) -> None:
        pool, storage, held = (
            (self.their_pool, self.theirs, self.given)
            if isinstance(one, SendTransfer)
            else (self.our_pool, self.ours, self.taken)
        )
        blocks = held.pop(one.transfer_id)
        storage.shared[blocks] = FREE_BYTE
        pool.release(blocks)

    def announce_blocks(self, message: ChunkReady | Handoff) -> None:
        self.wire.append(message)

    def withdraw(self, sent: SendTransfer, finished: bool) -> None:
        if not self.lossy() and sent.transfer_id in self.kv_receiver.open:
            self.kv_receiver.fail(self.transfers[sent.transfer_id], "withdrawn", self.now)

    # Callbacks of the KV receiver.

    def keep_blocks(self, take: ReceiveTransfer) -> None: ...

    def promote(self, take: ReceiveTransfer) -> None:
        """Check the bytes: this is the only place where pulled blocks are used."""
        ours = self.ours.shared[self.taken[take.transfer_id]]
        assert torch.equal(ours, self.bytes_of(take.transfer_id)), "wrong memory"
        self.free_blocks(take)

    def go_on_without(self, take: ReceiveTransfer) -> None: ...

    def send_fetched(self, take: ReceiveTransfer) -> None:
        if not self.lossy():
            self.kv_sender.heard(take.transfer_id, take.epoch, SendEvent.FETCHED, self.now)

    def send_abandon(self, take: ReceiveTransfer) -> None:
        if not self.lossy():
            self.kv_sender.release(take.transfer_id, SendEvent.DROPPED, self.now)

    def stop_worker(self, take: ReceiveTransfer) -> None:
        raise Stopped

    # Events.

    def bytes_of(self, name: str) -> torch.Tensor:
        """Return a prompt's blocks as prefill computes them."""
        torch.manual_seed(int.from_bytes(name.encode(), "big"))
        return torch.randint(0, 256, (self.sizes[name], LAYOUT.block_bytes), dtype=torch.uint8)

    def begin(self, name: str, size: int) -> bool:
        """Start a transfer if both sides have room, else do nothing."""
        if min(self.their_pool.available, self.our_pool.available) < size:
            return False
        self.sizes[name], self.given[name] = size, self.their_pool.take(size) or []
        self.taken[name] = self.our_pool.take(size) or []
        sent = self.kv_sender.begin(name, "D", self.now)
        assert sent is not None
        self.sends[name], self.transfers[name] = sent, self.kv_receiver.begin(name, "P", size, self.now)
        return True

    def compute(self, name: str, upto: int) -> None:
        sent, blocks = self.sends[name], self.given.get(name, [])
        if sent.state is not SendState.COMPUTING or upto <= sent.announced:
            return
        whole = self.bytes_of(name)
        self.theirs.shared[blocks[sent.announced : upto]] = whole[sent.announced : upto]
        if upto < self.sizes[name]:
            self.kv_sender.announce(sent, blocks[:upto], self.now)
        else:
            done = PrefillResult(16 * upto, [7], 16 * upto, 0, 0.0, [0])
            self.kv_sender.hold(sent, blocks, done, self.now)

    def deliver(self) -> None:
        if not self.wire:
            return
        message = self.wire.pop(0)
        take = self.transfers[message.transfer_id]
        if self.lossy() or take.ended or take.state is ReceiveState.DRAINING:
            return
        first = take.announced
        ours = self.taken[message.transfer_id][first : first + len(message.block_ids)]
        self.kv_receiver.announced(take, message, ours, self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for sent in self.kv_sender.late(self.now):
            self.kv_sender.release(sent.transfer_id, SendEvent.LATE, self.now)
        self.kv_receiver.poll(self.now)
        free = list(self.our_pool.free_list)
        assert bool((self.ours.shared[free] == FREE_BYTE).all()), "a copier wrote into a free block"

    def run_out(self) -> None:
        """Let time pass without any other event."""
        end = self.now + ENOUGH
        while (self.kv_sender.open or self.kv_receiver.open) and self.now < end:
            self.pass_time(1.0)

    def check_nothing_is_left(self) -> None:
        assert not self.kv_sender.open and not self.kv_receiver.open
        assert len(self.kv_sender.free_slots) == EPOCH_SLOTS
        for pool in (self.their_pool, self.our_pool):
            pool.check()
            assert pool.available == pool.capacity
        assert all(take.ended and not take.pending for take in self.transfers.values())


STEPS = st.one_of(
    st.tuples(st.just("begin"), st.integers(1, 5)),
    st.tuples(st.just("compute"), st.integers(1, 5)),
    st.tuples(st.just("deliver"), st.just(0)),
    st.tuples(st.just("pass"), st.sampled_from([0, 0, 1, 6, 40])),
    st.tuples(st.just("cancel"), st.integers(0, 3)),
    st.tuples(st.just("drop"), st.integers(0, 3)),
)


def carry_out(pools: Pools, kind: str, number: int) -> None:
    names = list(pools.sizes)
    if kind == "begin":
        pools.begin(f"t{len(names)}", number)
    elif kind == "compute":
        for name in names:
            pools.compute(name, min(number, pools.sizes[name]))
    elif kind == "deliver":
        pools.deliver()
    elif kind == "pass":
        pools.pass_time(float(number))
    elif kind == "cancel" and number < len(names):
        pools.kv_receiver.end(names[number], ReceiveEvent.CANCELLED, pools.now)
    elif kind == "drop" and number < len(names):
        pools.kv_sender.release(names[number], SendEvent.DROPPED, pools.now)


@settings(max_examples=examples(50, 250), deadline=None)
@given(data=st.data())
def test_every_transfer_ends_right_or_not_at_all_and_leaves_nothing(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(FINITE), max_size=12))
    losses = data.draw(st.lists(st.booleans(), max_size=12))
    pools = Pools(lambda: kinds.pop() if kinds else Mischief.NONE, data.draw(st.booleans()))
    pools.lossy = lambda: losses.pop() if losses else False
    for kind, number in [("begin", 3), *data.draw(st.lists(STEPS, max_size=25))]:
        carry_out(pools, kind, number)
    pools.run_out()
    pools.check_nothing_is_left()
    pools.close()


def run_one(pools: Pools) -> ReceiveTransfer:
    pools.begin("t", 3)
    for upto in (1, 3):
        pools.compute("t", upto)
        pools.deliver()
        pools.pass_time(0.1)
    pools.run_out()
    return pools.transfers["t"]


@pytest.mark.parametrize("kind", FINITE)
def test_each_mischief_by_itself(kind: Mischief) -> None:
    pools = Pools(lambda: kind)
    take = run_one(pools)
    harmless = kind in (Mischief.NONE, Mischief.DELAY, Mischief.LATE, Mischief.TWICE, Mischief.STRANGER)
    assert take.state is (ReceiveState.COMPLETE if harmless else ReceiveState.FAILED), take.error
    says = {
        Mischief.CORRUPT: "not the ones that were sent",
        Mischief.EMPTY: "not the ones that were sent",
        Mischief.STALL: "no bytes came",
        Mischief.ERROR: "the network is down",
    }
    assert says.get(kind, "") in str(take.error)
    pools.check_nothing_is_left()
    pools.close()


def test_what_is_read_after_the_lease_is_refused() -> None:
    """The blocks were freed and overwritten; the epoch cell shows it (and the digest would)."""
    pools = Pools(lambda: Mischief.LATE)
    pools.lossy = lambda: True
    pools.begin("t", 2)
    pools.compute("t", 2)
    pools.lossy = lambda: False
    pools.deliver()
    pools.lossy = lambda: True
    pools.kv_sender.release("t", SendEvent.LATE, 31.0)
    for _ in range(12):
        pools.pass_time(0.1)
    assert "reused" in str(pools.transfers["t"].error)
    pools.check_nothing_is_left()
    pools.close()


def test_a_pull_that_never_ends_costs_the_worker_and_no_block() -> None:
    pools = Pools(lambda: Mischief.STUCK)
    pools.begin("t", 2)
    pools.compute("t", 2)
    pools.deliver()
    pools.kv_receiver.end("t", ReceiveEvent.CANCELLED, pools.now)
    pools.pass_time(DRAIN_TIMEOUT - 1)
    with pytest.raises(Stopped):
        pools.pass_time(1.0)
    assert pools.our_pool.available == pools.our_pool.capacity - 2
    pools.close()
