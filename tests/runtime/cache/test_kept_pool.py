# SPDX-License-Identifier: Apache-2.0
"""A pool that outlives its process: whenever that is killed, the next one finds only blocks with the right bytes."""

import os
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from hypothesis.strategies import integers
from kept_files import BLOCKS, CPU, LAYOUT, OTHER, SAME, KeptFiles, key_of

from pontil.runtime.cache.block_recorder import STEP_SHARE
from pontil.runtime.cache.block_records import HEADER_BYTES, MOST_KEYS, RECORD_BYTES, BlockRecords, size_of
from pontil.runtime.cache.kept_pool import KeptPool
from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import EPOCH_SLOTS


@pytest.fixture
def launcher() -> Iterator[KeptFiles]:
    made = KeptFiles()
    yield made
    made.close()


class KeptPoolHistory(RuleBasedStateMachine):
    """Blocks are computed, filled up, found, released and evicted, their records are written now and then, and the
    process is killed at any moment. Each number is the content of one block at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.launcher = KeptFiles()
        self.process = self.launcher.start()
        self.numbers = count(1)
        self.owned: list[tuple[int, bool]] = []

    def teardown(self) -> None:
        self.launcher.close()

    @rule(final=st.booleans(), registered=st.booleans())
    def compute(self, final: bool, registered: bool) -> None:
        blocks = self.process.pool.take(1)
        if blocks is None:
            return
        number = next(self.numbers)
        self.process.fill(blocks[0], number)
        if registered:
            self.process.pool.index.add(key_of(number), blocks[0], final)
        self.owned.append((blocks[0], final and registered))

    @rule(which=integers(0, 100))
    def go_on(self, which: int) -> None:
        """Write on in a block that is not full; it is full then, and found by what was in it too."""
        if not self.owned:
            return
        block, final = self.owned[which % len(self.owned)]
        if final:
            return
        number = next(self.numbers)
        self.process.fill(block, number)
        self.process.pool.index.add(key_of(number), block)
        self.owned[which % len(self.owned)] = (block, True)

    @rule(which=integers(0, 100))
    def release(self, which: int) -> None:
        if self.owned:
            self.process.pool.release([self.owned.pop(which % len(self.owned))[0]])

    @rule(blocks=integers(0, 3))
    def record(self, blocks: int) -> None:
        """A second of the clock goes by for each block."""
        self.process.recorder.rest(blocks)

    @rule()
    def kill(self) -> None:
        """Everything that was recorded and not evicted since is found by the next process, in the same order of
        eviction."""
        before = self.process
        waiting = before.recorder.pending.keys() | before.recorder.fresh.keys()
        expected = {
            key: before.content(block)
            for block, keys in before.pool.index.keys.items()
            for key in keys[:MOST_KEYS]
            if block not in waiting and block not in before.recorder.unfinished
        }
        idle = [block for block in before.pool.idle if block not in waiting]
        self.process = self.launcher.start()
        assert [block for block in self.process.pool.idle if block in idle] == idle
        assert {key: self.process.found(key) for key in self.process.pool.index.blocks} == expected
        assert not self.process.recorder.damaged and -1 not in expected.values()
        free = set(range(BLOCKS)) - set(self.process.pool.idle)
        assert all(self.process.content(block) == 0 for block in free)
        self.owned.clear()

    @invariant()
    def conserved(self) -> None:
        self.process.pool.check()


TestKeptPoolHistory = KeptPoolHistory.TestCase


def test_the_next_process_finds_what_was_recorded(launcher: KeptFiles) -> None:
    first = launcher.start()
    blocks = [first.compute(number) for number in (11, 12, 13)]
    first.recorder.rest(100.0)
    second = launcher.start()
    assert [second.found(key_of(number)) for number in (11, 12, 13)] == [11, 12, 13]
    assert list(second.pool.idle) == blocks and second.pool.highest == 3 and second.recorder.restored == 3
    assert second.pool.available == BLOCKS - 1


def test_blocks_that_were_not_recorded_are_dropped_and_zeroed(launcher: KeptFiles) -> None:
    first = launcher.start()
    recorded = first.compute(11)
    first.recorder.rest(100.0)
    dropped = first.compute(12)
    second = launcher.start()
    assert second.found(key_of(11)) == 11 and second.found(key_of(12)) is None
    assert second.content(recorded) == 11 and second.content(dropped) == 0


def test_a_block_that_is_not_full_is_recorded_when_nobody_can_write_on(launcher: KeptFiles) -> None:
    first = launcher.start()
    (block,) = first.pool.take(1) or []
    first.pool.index.add(key_of(11), block, final=False)
    first.recorder.rest(100.0)
    assert launcher.start().found(key_of(11)) is None
    first = launcher.start()
    block = first.compute(11, final=False)
    first.recorder.rest(100.0)
    assert launcher.start().found(key_of(11)) == 11
    first.pool.discard(block)
    assert launcher.start().found(key_of(11)) is None


@pytest.mark.parametrize("bit", [0, 7, 8 * LAYOUT.block_bytes // 2, 8 * LAYOUT.block_bytes - 1])
def test_a_flipped_bit_in_a_block_drops_that_block_alone(launcher: KeptFiles, bit: int) -> None:
    first = launcher.start()
    block, other = first.compute(11), first.compute(12)
    first.recorder.rest(100.0)
    first.storage.shared[block][bit // 8] ^= 1 << (bit % 8)
    second = launcher.start()
    assert second.found(key_of(12)) == 12
    assert second.found(key_of(11)) is None and second.recorder.damaged == 1
    assert second.content(block) == 0 and block in second.pool.free_list and other in second.pool.idle
    second.pool.check()
    second.compute(11)
    assert second.found(key_of(11)) == 11


def test_a_damaged_block_that_nobody_asks_for_is_zeroed_before_it_is_used_again(launcher: KeptFiles) -> None:
    """Its bytes might be no numbers, which times a weight of zero are none either."""
    first = launcher.start()
    blocks = [first.compute(number) for number in range(11, 11 + BLOCKS - 1)]
    first.recorder.rest(100.0)
    first.storage.shared[blocks[0]].fill_(255)
    second = launcher.start()
    assert second.pool.take(1) == [blocks[0]]
    assert second.content(blocks[0]) == 0


@given(place=integers(0, 8 * 56 - 1))
def test_a_flipped_bit_in_a_record_drops_it_or_changes_the_order_only(place: int) -> None:
    file = os.memfd_create("records")
    records = BlockRecords.renew(file, BLOCKS)
    records.write(3, 77, (key_of(1), key_of(2)))
    records.touch(3, 5)
    before = records.read(3)
    assert before is not None and (before.keys, before.digest, before.used) == ((key_of(1), key_of(2)), 77, 5)
    records.map[HEADER_BYTES + 3 * RECORD_BYTES + place // 8] ^= 1 << (place % 8)
    after = records.read(3)
    assert after is None or (64 <= place < 128 and after.used != 5)
    os.close(file)


def test_a_record_counts_only_for_its_own_block() -> None:
    file = os.memfd_create("records")
    records = BlockRecords.renew(file, BLOCKS)
    records.write(3, 77, (key_of(1),))
    places = [HEADER_BYTES + block * RECORD_BYTES for block in (3, 4)]
    records.map[places[1] : places[1] + RECORD_BYTES] = records.map[places[0] : places[0] + RECORD_BYTES]
    assert records.read(4) is None and [one.block for one in records.all()] == [3]
    os.close(file)


@given(cut=integers(0, size_of(BLOCKS) - 1), flipped=integers(0, 8 * 56 - 1))
def test_a_file_that_is_not_whole_counts_for_nothing(cut: int, flipped: int) -> None:
    file = os.memfd_create("records")
    BlockRecords.renew(file, BLOCKS).declare(SAME)
    assert BlockRecords.kept(file, SAME) is not None and BlockRecords.kept(file, OTHER) is None
    byte = os.pread(file, 1, flipped // 8)[0]
    os.pwrite(file, bytes([byte ^ (1 << flipped % 8)]), flipped // 8)
    assert BlockRecords.kept(file, SAME) is None
    os.pwrite(file, bytes([byte]), flipped // 8)
    os.ftruncate(file, cut)
    assert BlockRecords.kept(file, SAME) is None
    os.close(file)


@pytest.mark.parametrize(("identity", "num_blocks"), [(OTHER, BLOCKS), (SAME, BLOCKS + 1), (SAME, BLOCKS - 1)])
def test_blocks_of_another_model_or_size_are_given_back(launcher: KeptFiles, identity: bytes, num_blocks: int) -> None:
    first = launcher.start()
    first.compute(11)
    first.recorder.rest(100.0)
    second = launcher.start(identity, num_blocks)
    assert second.found(key_of(11)) is None and not second.storage.shared.any()
    # The file never shrinks: a peer that still maps it would crash.
    assert os.fstat(launcher.blocks).st_size >= first.storage.size
    assert first.content(1) == 0 and int(first.storage.epochs[0]) == int(second.storage.epochs[0]) == 2000
    second.compute(12)
    second.recorder.rest(100.0)
    assert launcher.start(identity, num_blocks).found(key_of(12)) == 12


def test_epochs_of_a_kept_pool_are_later_than_all_before(launcher: KeptFiles) -> None:
    first = launcher.start()
    first.storage.set_epoch(3, 1000 + EPOCH_SLOTS + 7)
    launcher.epochs = iter([10**6])
    second = launcher.start()
    assert int(second.storage.epochs.min()) == 10**6 and len(set(second.storage.epochs.tolist())) == EPOCH_SLOTS
    assert second.storage.identity != first.storage.identity


def test_memory_is_counted_once(launcher: KeptFiles) -> None:
    """The next process has the pages of the one before, and those of blocks that were dropped are given back."""
    pages = KVLayout(8, 8, 2, 64, "float32")
    kept = KeptPool(os.dup(launcher.blocks), os.dup(launcher.records), SAME)
    storage, pool = kept.open(pages, BLOCKS, CPU, 1), BlockPool(BLOCKS)
    recorder = kept.recorder(storage, pool)
    blocks = pool.take(BLOCKS - 1) or []
    storage.shared[:] = 1
    for block in blocks[:2]:
        pool.index.add(key_of(block), block)
    recorder.rest(100.0)
    assert os.fstat(launcher.blocks).st_blocks * 512 >= BLOCKS * pages.block_bytes
    kept = KeptPool(os.dup(launcher.blocks), os.dup(launcher.records), SAME)
    storage, pool = kept.open(pages, BLOCKS, CPU, 1000), BlockPool(BLOCKS)
    kept.recorder(storage, pool)
    assert pool.index.find(key_of(blocks[1])) == blocks[1]
    assert 2 * pages.block_bytes <= os.fstat(launcher.blocks).st_blocks * 512 <= 4 * pages.block_bytes


def test_recording_takes_its_share_of_steps_and_no_more(launcher: KeptFiles) -> None:
    """Each block takes a second of this clock: a hundred seconds of steps pay for one."""
    process = launcher.start()
    for number in range(11, 16):
        process.compute(number)
    process.recorder.after_step(1.0)
    assert len(process.recorder.pending) == 5, "what a step was told of its blocks leaves the process first"
    process.recorder.after_step(1.0)
    assert len(process.recorder.pending) == 4, "a block is recorded even where a step pays for less"
    for _ in range(round(1 / STEP_SHARE) - 2):
        process.recorder.after_step(1.0)
    assert len(process.recorder.pending) == 4
    process.recorder.after_step(2.0)
    assert len(process.recorder.pending) == 3


def test_a_damaged_block_is_not_kept_elsewhere_when_it_is_evicted(launcher: KeptFiles) -> None:
    """A tier would give it a digest of its own, and it would pass for whole."""
    first = launcher.start()
    blocks = [first.compute(number) for number in range(11, 11 + BLOCKS - 1)]
    first.recorder.rest(100.0)
    first.storage.shared[blocks[0]].fill_(255)
    second = launcher.start()
    kept: list[int] = []
    second.pool.evicted = lambda block, key: kept.append(block)
    assert second.pool.take(2) == blocks[:2]
    assert kept == [blocks[1]] and second.recorder.damaged == 1
    second.pool.check()
