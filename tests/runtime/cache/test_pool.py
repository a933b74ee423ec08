# SPDX-License-Identifier: Apache-2.0
"""The conservation law of the block pool, over any history."""

from collections import Counter

import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from hypothesis.strategies import integers

from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.prefix import chain, root_key

CAPACITY = 19


class PoolHistory(RuleBasedStateMachine):
    """Owners that reserve, bind, share, register and release in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(CAPACITY + 1)
        self.owners: list[tuple[list[int], int]] = []
        self.written: dict[bytes, int] = {}
        self.keys = 0

    @rule(count=integers(0, 25), spare=integers(0, 3))
    def reserve(self, count: int, spare: int) -> None:
        room = self.pool.available
        assert self.pool.reserve(count, spare=spare) == (count + spare <= room)
        if count + spare <= room:
            self.owners.append(([], count))

    @rule(which=integers(0, 100), count=integers(0, 5))
    def bind(self, which: int, count: int) -> None:
        if self.owners:
            index = which % len(self.owners)
            blocks, credits = self.owners[index]
            count = min(count, credits)
            self.owners[index] = (blocks + self.pool.bind(count), credits - count)

    @rule(count=integers(0, 25))
    def take(self, count: int) -> None:
        room = self.pool.available
        blocks = self.pool.take(count)
        assert (blocks is not None) == (count <= room)
        if blocks:
            self.owners.append((blocks, 0))

    @rule(which=integers(0, 100))
    def register(self, which: int) -> None:
        """Register a sequence's last block in the prefix index."""
        if self.owners and self.owners[which % len(self.owners)][0]:
            block = self.owners[which % len(self.owners)][0][-1]
            self.keys += 1
            key = chain(root_key(""), [self.keys])
            self.pool.index.add(key, block)
            self.written[key] = block

    @rule(which=integers(0, 100), count=integers(0, 3))
    def find(self, which: int, count: int) -> None:
        """Found blocks are those that were registered, and stay while they are owned."""
        if not self.written:
            return
        key = list(self.written)[which % len(self.written)]
        block = self.pool.index.find(key)
        assert block in (None, self.written[key])
        if block is not None and self.pool.reserve(count, [block]):
            assert self.pool.index.find(key) == block
            self.owners.append(([block], count))

    @rule(which=integers(0, 100))
    def release(self, which: int) -> None:
        if self.owners:
            self.pool.release(*self.owners.pop(which % len(self.owners)))

    @rule()
    def forget(self) -> None:
        self.pool.forget_prefixes()

    @invariant()
    def conserved(self) -> None:
        self.pool.check()
        owned = Counter(block for blocks, _ in self.owners for block in blocks)
        assert owned == self.pool.owners and 0 not in owned
        assert self.pool.available == CAPACITY - len(owned) - sum(credits for _, credits in self.owners)


TestPoolHistory = PoolHistory.TestCase


def registered(pool: BlockPool, count: int) -> list[int]:
    """Blocks with findable content, released."""
    blocks = pool.take(count)
    assert blocks is not None
    for number, block in enumerate(blocks):
        pool.index.add(chain(root_key(""), [number]), block)
    pool.release(blocks)
    return blocks


def test_a_block_cannot_be_released_twice() -> None:
    pool = BlockPool(4)
    blocks = pool.take(2)
    assert blocks is not None
    pool.release(blocks)
    with pytest.raises(AssertionError, match="twice"):
        pool.release(blocks)


def test_a_shared_block_is_free_when_its_last_owner_leaves() -> None:
    pool = BlockPool(4)
    blocks = pool.take(1)
    assert blocks is not None
    pool.share(blocks)
    assert pool.is_shared(blocks[0])
    pool.release(blocks)
    assert not pool.is_shared(blocks[0]) and pool.available == 2
    pool.release(blocks)
    assert pool.available == 3


def test_free_blocks_go_out_before_cached_ones_and_ends_before_beginnings() -> None:
    pool = BlockPool(6)
    cached = registered(pool, 3)
    assert pool.available == 5
    fresh = pool.take(2)
    assert fresh is not None and not set(fresh) & set(cached)
    assert pool.take(1) == [cached[2]]
    assert [pool.index.find(chain(root_key(""), [number])) for number in range(3)] == [*cached[:2], None]


def test_what_is_retired_is_evicted_first() -> None:
    pool = BlockPool(4)
    cached = registered(pool, 3)
    pool.retire(cached[0])
    assert pool.take(1) == [cached[0]]
    pool.retire(cached[0])
    assert pool.take(1) == [cached[2]]
    pool.check()


def test_what_was_used_last_is_evicted_last() -> None:
    pool = BlockPool(4)
    first, second, third = registered(pool, 3)
    assert pool.reserve(0, [third])
    pool.release([third])
    assert pool.take(3) == [second, first, third]


def test_found_blocks_are_not_counted_as_room_for_the_rest() -> None:
    """Two of three idle blocks are found: only one more can be reserved."""
    pool = BlockPool(4)
    found = registered(pool, 3)[:2]
    assert not pool.reserve(2, found)
    pool.check()
    assert pool.reserve(1, found)
    assert pool.available == 0


def test_keys_tell_salts_lengths_and_histories_apart() -> None:
    root = root_key("")
    keys = [
        chain(root, [1, 2]), chain(root, [2, 1]), chain(root, [1]), chain(chain(root, [1]), [2]),
        chain(root_key("tenant"), [1, 2]), root, root_key("tenant"),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)
