# SPDX-License-Identifier: Apache-2.0
"""Handoffs between workers of different numbers of ranks (H5, H6)."""

from collections.abc import Callable, Iterator

import pytest
import torch
from hostile_connector import HostileConnector, Mischief, PullAtOnce
from rank_groups import Open, RankPair, opened

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config import DEADLINES
from pontil.runtime.disaggregation.states import ReceiveEvent, ReceiveState, SendEvent
from pontil.runtime.transfer.grants import Grants

SIZES = ((1, 1), (1, 2), (2, 1), (2, 2), (2, 4), (4, 2), (1, 4), (4, 1))
THEIRS, OURS = [3, 4, 9], [5, 6, 1]
Pair = Callable[..., RankPair]


def fits(heads: int, ranks: int) -> bool:
    return heads % ranks == 0 or ranks % heads == 0


DIVISIONS = [(giving, taking, heads) for giving, taking in SIZES for heads in (1, 2, 3, 4, 8)
             if fits(heads, giving) and fits(heads, taking)]  # fmt: skip


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


@pytest.mark.parametrize("kind", ["shm", "tcp", "guarded"])
@pytest.mark.parametrize(("giving", "taking", "heads"), DIVISIONS)
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
