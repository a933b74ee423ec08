# SPDX-License-Identifier: Apache-2.0
"""A pool that outlives its process, above tiers, whose changes are told to a proxy: whatever path leads to a block, it
has the right bytes."""

import tempfile
from collections import defaultdict
from itertools import count
from random import Random

from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from kept_files import LAYOUT, KeptFiles, key_of
from tiers import SteppedStore, always

from pontil.runtime.cache.prefix import Key
from pontil.runtime.cache.prefix_journal import SHORT_BYTES
from pontil.runtime.cache.tier.chain import TierChain
from pontil.runtime.cache.tier.disk_tier import PAGE, RECORD_BYTES, DiskTier
from pontil.runtime.cache.tier.memory_tier import MemoryTier
from pontil.runtime.cache.tier.tier_store import TierWrite

BLOCKS, IN_MEMORY, ON_DISK, STAGED = 5, 1, 2, 4


class TieredHistory:
    """Blocks are computed, filled up, released, evicted to tiers and read back, while records, the tiers' thread and
    the proxy lag behind, and the process is killed at any moment. Each number is the content of one block at a time;
    `right` has what may be in a block that is found by a key."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.folder = tempfile.TemporaryDirectory()
        self.launcher = KeptFiles()
        self.numbers = count(1)
        self.right: dict[Key, set[int]] = defaultdict(set)
        self.is_damaged = chance.random() < 0.5
        self.start()

    def start(self) -> None:
        self.process = self.launcher.start(num_blocks=BLOCKS)
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

    def end(self) -> None:
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

    def compute(self) -> None:
        """Compute full blocks, some of which were known before: tiers may still have them."""
        released = self.chance.random() < 0.8
        for _ in range(self.chance.randint(1, 4)):
            index = self.process.pool.index
            lost = [key for key, may in self.right.items() if key not in index.blocks and len(may) == 1]
            taken = self.process.pool.take(1)
            if taken is None:
                return
            number = next(self.numbers)
            key = self.chance.choice(lost) if lost and self.chance.random() < 0.3 else key_of(number)
            self.fill(taken[0], min(self.right[key], default=number), key, True)
            if released:
                self.process.pool.release(taken)
            else:
                self.owned.append((taken[0], None))

    def begin(self) -> None:
        """Compute a block that is not full."""
        if taken := self.process.pool.take(1):
            number = next(self.numbers)
            self.fill(taken[0], number, key_of(number), False)
            self.owned.append((taken[0], key_of(number)))

    def go_on(self) -> None:
        """Write on in a block that is not full; it is full then, and found by what was in it too."""
        open_blocks = [place for place, (_, key) in enumerate(self.owned) if key is not None]
        if not open_blocks:
            return
        place = self.chance.choice(open_blocks)
        block, before = self.owned[place]
        number = next(self.numbers)
        assert before is not None
        self.right[before].add(number)
        self.fill(block, number, key_of(number), True)
        self.owned[place] = (block, None)

    def release(self) -> None:
        for _ in range(min(self.chance.randint(1, 4), len(self.owned))):
            self.process.pool.release([self.owned.pop(self.chance.randrange(len(self.owned)))[0]])

    def share(self) -> None:
        """Find a block, and own it."""
        index, keys = self.process.pool.index, list(self.process.pool.index.blocks)
        block = index.find(self.chance.choice(keys)) if keys else None
        if block is not None and self.process.pool.reserve(0, [block]):
            self.owned.append((block, None))

    def read(self) -> None:
        """Begin to read blocks that only a tier has."""
        index = self.process.pool.index
        keys = [key for key in self.store.chain.known() if key not in index.blocks]
        keys = self.chance.sample(keys, min(len(keys), self.chance.randint(1, 3)))
        blocks = self.process.pool.take(len(keys)) if keys else None
        if blocks:
            self.reads[self.store.read(list(zip(keys, blocks, strict=True)))] = keys, blocks

    def store_some(self) -> None:
        """Let the tiers' thread go on, and take what it has read."""
        self.store.work(self.chance.randint(1, 8))
        for result in self.store.poll():
            keys, blocks = self.reads.pop(result.ticket)
            for key, block in zip(keys[: result.good], blocks, strict=False):
                assert self.process.content(block) in self.right[key]
                self.process.pool.index.add(key, block)
            self.process.pool.release(blocks)

    def record(self) -> None:
        self.process.recorder.rest(self.chance.randint(1, 4))

    def damage_a_slot(self) -> None:
        self.tiers[0].slots ^= 1

    def hear(self, most: int = 3) -> None:
        self.process.pool.index.catch_up()
        added, removed = self.journal.take(most)
        self.told |= {added[at : at + SHORT_BYTES] for at in range(0, len(added), SHORT_BYTES)}
        self.told -= {removed[at : at + SHORT_BYTES] for at in range(0, len(removed), SHORT_BYTES)}

    def kill(self) -> None:
        self.store.close()
        if self.is_damaged and self.chance.random() < 0.5:
            self.process.fill(self.chance.randint(1, BLOCKS - 1), 0)
        self.start()

    def forget_all(self) -> None:
        self.process.pool.forget_prefixes()
        self.process.pool.index.journals.remove(self.journal)
        self.journal, self.told = self.process.pool.index.open_journal(), set()

    def check(self) -> None:
        self.process.pool.check()
        staged = sum(isinstance(job, TierWrite) and job.number is not None for job in self.store.writes)
        assert len(self.store.staging.free) + staged == STAGED
        assert all(len(tier) + len(tier.free) == tier.capacity for tier in self.tiers)
        unchecked = self.process.recorder.unchecked
        for key, block in self.process.pool.index.blocks.items():
            assert self.is_damaged or not self.process.recorder.damaged
            assert block in unchecked or self.process.content(block) in self.right[key]


@settings(max_examples=examples(10, 300))
@given(st.integers(0, 1 << 32))
def test_every_path_leads_to_the_right_bytes(seed: int) -> None:
    chance = Random(seed)
    history = TieredHistory(chance)
    often = [history.compute, history.release, history.read, history.store_some, history.record, history.share]
    seldom = [history.begin, history.go_on, history.hear, history.kill]
    rarely = [history.damage_a_slot, history.forget_all]
    for _ in range(300):
        chance.choice(chance.choices([often, seldom, rarely], [20, 8, 1])[0])()
        history.check()
    history.end()
