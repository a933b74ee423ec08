# SPDX-License-Identifier: Apache-2.0
"""A pool that outlives its process, above tiers, whose changes are told to a proxy: whatever path leads to a block, it
has the right bytes."""

import tempfile
from collections import defaultdict
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from hypothesis.strategies import integers
from kept_files import LAYOUT, KeptFiles, key_of
from tiers import always

from pontil.runtime.cache.prefix import Key
from pontil.runtime.cache.prefix_journal import SHORT_BYTES
from pontil.runtime.cache.tier.chain import TierChain
from pontil.runtime.cache.tier.disk_records import RECORD_BYTES
from pontil.runtime.cache.tier.disk_tier import PAGE, DiskTier
from pontil.runtime.cache.tier.memory_tier import MemoryTier
from pontil.runtime.cache.tier.tier_store import TierStore

IN_MEMORY, ON_DISK, STAGED = 2, 3, 4


class SteppedStore(TierStore):
    """Store whose thread ends at once: the test carries out its jobs."""

    def serve_until_closed(self) -> None:
        """Do nothing."""

    def work(self, most: int) -> None:
        for _ in range(most):
            if not self.jobs.empty():
                self.jobs.get()
                self.carry_out(self.reads.popleft() if self.reads else self.writes.popleft())


@settings(stateful_step_count=40)
class PoolHistory(RuleBasedStateMachine):
    """Blocks are computed, filled up, released, evicted to tiers and read back, while records, the tiers' thread and
    the proxy lag behind, and the process is killed at any moment. Each number is the content of one block at a time;
    `right` has what may be in a block that is found by a key."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.launcher = KeptFiles()
        self.numbers = count(1)
        self.right: dict[Key, set[int]] = defaultdict(set)
        self.is_damaged = False
        self.start()

    def start(self) -> None:
        self.process = self.launcher.start()
        size, index = LAYOUT.block_bytes, self.process.pool.index
        disk = DiskTier(self.folder.name, "worker", ON_DISK * (PAGE + RECORD_BYTES), size, "same")
        self.tiers = MemoryTier(IN_MEMORY * size, size), disk
        chain = TierChain(self.tiers, size)
        self.store = SteppedStore(self.process.storage, chain, always(*self.tiers), staging_bytes=STAGED * size)
        self.process.pool.evicted = self.store.evicted
        index.below = chain
        self.owned: list[tuple[int, Key | None]] = []
        self.reads: dict[int, tuple[list[Key], list[int]]] = {}
        self.journal, self.told = index.open_journal(), set[bytes]()

    def teardown(self) -> None:
        self.hear(1000)
        index = self.process.pool.index
        known = {*index.blocks, *self.store.chain.known()}
        assert self.told == {key[:SHORT_BYTES] for key in known}
        self.store.close()
        self.launcher.close()
        self.folder.cleanup()

    def fill(self, block: int, number: int, key: Key, final: bool) -> None:
        self.process.fill(block, number)
        self.right[key].add(number)
        self.process.pool.index.add(key, block, final)

    @rule(blocks=integers(1, 6), first=integers(0, 100), released=st.booleans())
    def compute(self, blocks: int, first: int, released: bool) -> None:
        """Compute full blocks, some of which were known before: tiers may still have them."""
        for place in range(blocks):
            index = self.process.pool.index
            lost = [key for key, may in self.right.items() if key not in index.blocks and len(may) == 1]
            taken = self.process.pool.take(1)
            if taken is None:
                return
            number = next(self.numbers)
            key = lost[first % len(lost)] if lost and (first + place) % 3 == 0 else key_of(number)
            self.fill(taken[0], min(self.right[key], default=number), key, True)
            if released:
                self.process.pool.release(taken)
            else:
                self.owned.append((taken[0], None))

    @rule()
    def begin(self) -> None:
        """Compute a block that is not full."""
        if taken := self.process.pool.take(1):
            number = next(self.numbers)
            self.fill(taken[0], number, key_of(number), False)
            self.owned.append((taken[0], key_of(number)))

    @rule(which=integers(0, 100))
    def go_on(self, which: int) -> None:
        """Write on in a block that is not full; it is full then, and found by what was in it too."""
        open_blocks = [place for place, (_, key) in enumerate(self.owned) if key is not None]
        if not open_blocks:
            return
        place = open_blocks[which % len(open_blocks)]
        block, before = self.owned[place]
        number = next(self.numbers)
        assert before is not None
        self.right[before].add(number)
        self.fill(block, number, key_of(number), True)
        self.owned[place] = (block, None)

    @rule(which=integers(0, 100), most=integers(1, 8))
    def release(self, which: int, most: int) -> None:
        for _ in range(min(most, len(self.owned))):
            self.process.pool.release([self.owned.pop(which % len(self.owned))[0]])

    @rule(which=integers(0, 100))
    def share(self, which: int) -> None:
        """Find a block, and own it."""
        index, keys = self.process.pool.index, list(self.process.pool.index.blocks)
        block = index.find(keys[which % len(keys)]) if keys else None
        if block is not None and self.process.pool.reserve(0, [block]):
            self.owned.append((block, None))

    @rule(which=integers(0, 100), most=integers(1, 3))
    def read(self, which: int, most: int) -> None:
        """Begin to read blocks that only a tier has."""
        index = self.process.pool.index
        keys = [key for key in self.store.chain.known() if key not in index.blocks][which % 7 :][:most]
        blocks = self.process.pool.take(len(keys)) if keys else None
        if blocks:
            self.reads[self.store.read(list(zip(keys, blocks, strict=True)))] = keys, blocks

    @rule(most=integers(1, 8))
    def store_some(self, most: int) -> None:
        """Let the tiers' thread go on, and take what it has read."""
        self.store.work(most)
        for result in self.store.poll():
            keys, blocks = self.reads.pop(result.ticket)
            for key, block in zip(keys[: result.good], blocks, strict=False):
                assert self.process.content(block) in self.right[key]
                self.process.pool.index.add(key, block)
            self.process.pool.release(blocks)

    @rule(blocks=integers(1, 9))
    def record(self, blocks: int) -> None:
        self.process.recorder.rest(blocks)

    @rule(which=integers(0, 100))
    def damage_a_slot(self, which: int) -> None:
        self.tiers[0].slots[which % IN_MEMORY] ^= 1

    @rule(most=integers(1, 5))
    def hear(self, most: int) -> None:
        self.process.pool.index.catch_up()
        added, removed = self.journal.take(most)
        self.told |= {added[at : at + SHORT_BYTES] for at in range(0, len(added), SHORT_BYTES)}
        self.told -= {removed[at : at + SHORT_BYTES] for at in range(0, len(removed), SHORT_BYTES)}

    @rule(damaged=st.none() | integers(1, 8))
    def kill(self, damaged: int | None) -> None:
        self.store.close()
        if damaged is not None:
            self.process.fill(damaged, 0)
        self.start()
        self.is_damaged = damaged is not None

    @rule()
    def forget_all(self) -> None:
        self.process.pool.forget_prefixes()
        self.process.pool.index.journals.remove(self.journal)
        self.journal, self.told = self.process.pool.index.open_journal(), set()

    @invariant()
    def conserved(self) -> None:
        self.process.pool.check()
        staged = sum(job.number is not None for job in self.store.writes)
        assert len(self.store.staging.free) + staged == STAGED
        assert all(len(tier) + len(tier.free) == tier.capacity for tier in self.tiers)

    @invariant()
    def right_bytes(self) -> None:
        unchecked = self.process.recorder.unchecked
        for key, block in self.process.pool.index.blocks.items():
            assert self.is_damaged or not self.process.recorder.damaged
            assert block in unchecked or self.process.content(block) in self.right[key]


TestPoolHistory = PoolHistory.TestCase
