# SPDX-License-Identifier: Apache-2.0
"""The conservation law of the block pool, over any history."""

import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from hypothesis.strategies import integers

from pontil.runtime.cache.pool import BlockPool


class PoolHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(20)
        self.owners: list[tuple[list[int], int]] = []

    @rule(count=integers(0, 25))
    def reserve(self, count: int) -> None:
        room = self.pool.available
        assert self.pool.reserve(count) == (count <= room)
        if count <= room:
            self.owners.append(([], count))

    @rule(which=integers(0, 100), count=integers(0, 5))
    def bind(self, which: int, count: int) -> None:
        if self.owners:
            index = which % len(self.owners)
            blocks, credits = self.owners[index]
            count = min(count, credits)
            self.owners[index] = (blocks + self.pool.bind(count), credits - count)

    @rule(which=integers(0, 100))
    def release(self, which: int) -> None:
        if self.owners:
            self.pool.release(*self.owners.pop(which % len(self.owners)))

    @invariant()
    def conserved(self) -> None:
        self.pool.check()
        owned = [block for blocks, _ in self.owners for block in blocks]
        assert len(owned) == len(set(owned)) and 0 not in owned
        assert self.pool.available == 19 - len(owned) - sum(credits for _, credits in self.owners)


TestPoolHistory = PoolHistory.TestCase


def test_a_block_cannot_be_released_twice() -> None:
    pool = BlockPool(4)
    assert pool.reserve(2)
    blocks = pool.bind(2)
    pool.release(blocks)
    with pytest.raises(AssertionError, match="twice"):
        pool.release(blocks)
