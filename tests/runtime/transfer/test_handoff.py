# SPDX-License-Identifier: Apache-2.0
"""Both sides of a handoff in one process, over the real connector and over one that lies."""

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import Enum
from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.storage import EPOCH_SLOTS, KVStorage
from pontil.runtime.errors import TransferError
from pontil.runtime.transfer.connector import STALL, Done, Pair, runs
from pontil.runtime.transfer.giver import LEASE_TOTAL, Giver, Prefilled
from pontil.runtime.transfer.over_shm import OverShm
from pontil.runtime.transfer.states import GIVING_ENDS, GIVING_MOVES, TAKING_MOVES, Giving, Taking, move
from pontil.runtime.transfer.taker import Take, Taker
from pontil.runtime.wire.messages import ChunkReady, Handoff

LAYOUT = KVLayout(16, 2, 2, 8, "bfloat16")
CPU = torch.device("cpu")
DEADLINE = 10.0
DONE = Prefilled(computed=40, first_tokens=[7], prompt_tokens=40, cached_tokens=0, seconds=0.5, choices=[0])


class Pair1P1D:
    """A giver with random blocks, and a taker that has mapped them."""

    def __init__(self) -> None:
        self.theirs, self.ours = KVStorage(LAYOUT, 12, CPU), KVStorage(LAYOUT, 9, CPU)
        self.theirs.tensor.copy_(torch.randn(self.theirs.tensor.shape))
        self.bell = threading.Event()
        self.giver = Giver(self.theirs, "P")
        self.source = OverShm(self.theirs, lambda: None)
        self.connector = OverShm(self.ours, self.bell.set)
        self.connector.attach("P", self.source.register())
        self.taker = Taker(self.connector, self.ours)

    def close(self) -> None:
        self.source.close()
        self.connector.close()

    def wait(self, now: float = 0.0) -> list[Take]:
        """Poll until some transfer has ended."""
        ended: list[Take] = []
        while not ended:
            assert self.bell.wait(DEADLINE), "no pull ended"
            self.bell.clear()
            ended = self.taker.poll(now)
        return ended


@pytest.fixture
def both() -> Iterator[Pair1P1D]:
    made = Pair1P1D()
    yield made
    made.close()


def give(both: Pair1P1D) -> tuple[ChunkReady, Handoff]:
    """Three blocks, two of them announced ahead."""
    gift = both.giver.begin("t", "D")
    assert gift is not None
    chunk = both.giver.announce(gift, [3, 4])
    assert chunk is not None
    return chunk, both.giver.hold(gift, [3, 4, 9], DONE, now=0.0)


def test_blocks_arrive_chunk_by_chunk(both: Pair1P1D) -> None:
    chunk, handoff = give(both)
    assert (chunk.first, chunk.block_ids, handoff.first, handoff.block_ids) == (0, [3, 4], 2, [9])
    take = both.taker.begin("t", "P", 3)
    both.taker.announced(take, chunk, [5, 6], 0.0)
    both.taker.announced(take, handoff, [1], 0.0)
    assert both.wait() == [take]
    assert take.state is Taking.COMPLETE and take.bytes == 3 * LAYOUT.block_bytes
    assert torch.equal(both.ours.tensor[[5, 6, 1]], both.theirs.tensor[[3, 4, 9]])
    gift = both.giver.release("t", Giving.RELEASED, handoff.epoch)
    assert gift is not None and gift.blocks == [3, 4, 9]
    assert both.giver.release("t", Giving.RELEASED, handoff.epoch) is None
    assert not both.giver.open and len(both.giver.free_slots) == EPOCH_SLOTS


def test_blocks_that_were_reused_are_refused(both: Pair1P1D) -> None:
    chunk, handoff = give(both)
    both.giver.release("t", Giving.EXPIRED)
    take = both.taker.begin("t", "P", 3)
    both.taker.announced(take, handoff_of_all(chunk, handoff), [5, 6, 7], 0.0)
    both.wait()
    assert take.state is Taking.FAILED and "reused" in str(take.error)


def test_blocks_that_were_changed_are_refused(both: Pair1P1D) -> None:
    chunk, handoff = give(both)
    both.theirs.tensor[4, 1, 1, 1, 15, 7] += 1
    take = both.taker.begin("t", "P", 3)
    both.taker.announced(take, handoff_of_all(chunk, handoff), [5, 6, 7], 0.0)
    both.wait()
    assert take.state is Taking.FAILED and "not the ones" in str(take.error)


def handoff_of_all(chunk: ChunkReady, handoff: Handoff) -> Handoff:
    ids, digests = chunk.block_ids + handoff.block_ids, chunk.digests + handoff.digests
    return replace(handoff, first=0, block_ids=ids, digests=digests)


@pytest.mark.parametrize(
    "change",
    [{"epoch": 5}, {"slot": 5}, {"first": 1}, {"digests": []}, {"kv_fingerprint": "other"}],
    ids=lambda change: next(iter(change)),
)
def test_a_peer_that_contradicts_itself_fails_the_transfer(both: Pair1P1D, change: dict[str, int]) -> None:
    chunk, handoff = give(both)
    take = both.taker.begin("t", "P", 3)
    both.taker.announced(take, chunk, [5, 6], 0.0)
    both.taker.announced(take, replace(handoff, **change), [1], 0.0)  # type: ignore[arg-type]
    both.wait()
    assert take.state is Taking.FAILED and not both.taker.open


@pytest.mark.parametrize(("ids", "slot"), [([0], 0), ([12], 0), ([-1], 0), ([3], -1), ([3], EPOCH_SLOTS)])
def test_blocks_outside_the_peers_pool_are_not_read(both: Pair1P1D, ids: list[int], slot: int) -> None:
    take = both.taker.begin("t", "P", 1)
    both.taker.announced(take, ChunkReady("P", "D", "t", 0, slot, 0, ids, [0]), [1], 0.0)
    both.wait()
    assert take.state is Taking.FAILED and "does not have" in str(take.error)


def test_a_cancelled_transfer_ends_when_its_pull_has(both: Pair1P1D) -> None:
    stuck = StuckConnector()
    taker = Taker(stuck, both.ours)
    take = taker.begin("t", "P", 3)
    chunk, _ = give(both)
    taker.announced(take, chunk, [5, 6], 0.0)
    assert taker.cancel("t") is take and taker.cancel("t") is None
    assert taker.poll(0.0) == [] and take.state.name == "DRAINING"
    stuck.release = True
    assert taker.poll(0.0) == [take] and take.state.name == "CANCELLED"


def test_a_pull_without_bytes_is_a_stall(both: Pair1P1D) -> None:
    stuck = StuckConnector()
    taker = Taker(stuck, both.ours)
    take = taker.begin("t", "P", 3)
    chunk, _ = give(both)
    taker.announced(take, chunk, [5, 6], 0.0)
    taker.poll(STALL)
    assert take.error is None
    taker.poll(STALL + 0.1)
    stuck.release = True
    assert taker.poll(STALL + 0.2) == [take] and take.state is Taking.FAILED


class StuckConnector(OverShm):
    """Never ends a pull until told to."""

    def __init__(self) -> None:
        self.open: list[int] = []
        self.release = False

    def pull(self, peer: str, pairs: Sequence[Pair], slot: int) -> int:
        self.open.append(len(self.open))
        return self.open[-1]

    def cancel(self, ticket: int) -> None:
        assert ticket in self.open

    def poll(self) -> list[Done]:
        ended = self.open if self.release else []
        self.open = [] if self.release else self.open
        return [Done(ticket, "cancelled", None, 0, 0.0) for ticket in ended]


def test_a_lease_expires_unless_renewed_and_never_lives_forever(both: Pair1P1D) -> None:
    give(both)
    assert both.giver.expired(29.9) == []
    both.giver.renew("t", epoch=99, now=29.0)
    assert [gift.transfer_id for gift in both.giver.expired(30.0)] == ["t"]
    both.giver.renew("t", epoch=0, now=29.0)
    assert both.giver.expired(58.0) == []
    both.giver.renew("t", epoch=0, now=LEASE_TOTAL - 1)
    assert both.giver.expired(LEASE_TOTAL - 0.1) == []
    assert len(both.giver.expired(LEASE_TOTAL)) == 1


def test_the_epoch_moves_before_the_blocks_are_given_back(both: Pair1P1D) -> None:
    gift = both.giver.begin("t", "D")
    assert gift is not None
    assert both.giver.release("t", Giving.ABANDONED) is gift
    assert int(both.theirs.epochs[gift.slot]) == gift.epoch + 1
    assert both.giver.release("t", Giving.ABANDONED) is None
    for number in range(EPOCH_SLOTS):  # the slot comes round again, under its next epoch
        again = both.giver.begin(f"n{number}", "D")
    assert again is not None and (again.slot, again.epoch) == (gift.slot, gift.epoch + 1)
    assert both.giver.begin("one too many", "D") is None


@pytest.mark.parametrize(
    "descriptor",
    [
        {},
        {"pid": 0},
        {"pid": "x"},
        {"pid": 1 << 40},
        {"fd": None},
        {"identity": "zz"},
        {"block_bytes": 7},
        {"kind": "tcp"},
    ],
)
def test_a_descriptor_that_cannot_be_opened_is_refused(both: Pair1P1D, descriptor: dict[str, object]) -> None:
    with pytest.raises(TransferError):
        both.connector.attach("other", both.source.register() | descriptor if descriptor else {})
    with pytest.raises(TransferError, match="another size"):
        both.connector.attach("other", both.source.register() | {"blocks": 13})


def test_memory_that_is_not_the_peers_is_refused(both: Pair1P1D) -> None:
    """A process and a descriptor of these numbers may exist on this host though the peer is on another one."""
    elsewhere = OverShm(KVStorage(LAYOUT, 12, CPU), lambda: None)
    with pytest.raises(TransferError, match="not this host's"):
        both.connector.attach("other", both.source.register() | {"identity": elsewhere.register()["identity"]})
    elsewhere.close()
    reading, writing = os.pipe()  # to open one for reading waits for a writer, unless told not to
    with pytest.raises(TransferError, match="another size"):
        both.connector.attach("other", both.source.register() | {"fd": reading})
    os.close(reading)
    os.close(writing)


class LettingGo:
    """Blocks whose owner lets go of them while they are read."""

    def __init__(self, storage: KVStorage) -> None:
        self.storage = storage

    def __getitem__(self, place: slice) -> NDArray[np.uint8]:
        self.storage.epochs[3] += 1
        return self.storage.shared.numpy()[place]


def test_the_cell_is_read_after_the_data(both: Pair1P1D) -> None:
    both.connector.peers["P"].blocks = LettingGo(both.theirs)  # type: ignore[assignment]
    both.connector.pull("P", [(1, 1), (5, 6)], 3)
    assert both.bell.wait(DEADLINE)
    assert [(done.error, done.epoch) for done in both.connector.poll()] == [(None, 2)]


def test_neighbours_are_merged() -> None:
    assert runs([(1, 5), (2, 6), (3, 9), (7, 10), (8, 11)]) == [(1, 5, 2), (3, 9, 1), (7, 10, 2)]
    assert runs([]) == []


@pytest.mark.parametrize("moves", [GIVING_MOVES, TAKING_MOVES], ids=["giving", "taking"])
def test_the_tables_are_whole(moves: dict[Enum, frozenset[Enum]]) -> None:
    states = list(type(next(iter(moves))))
    assert set(moves) == set(states)
    for here, there in product(states, states):
        if there in moves[here]:
            assert move(moves, here, there) is there
        else:
            with pytest.raises(AssertionError):
                move(moves, here, there)
    assert frozenset(state for state in Giving if not GIVING_MOVES[state]) == GIVING_ENDS
