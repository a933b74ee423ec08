# SPDX-License-Identifier: Apache-2.0
"""A pool that outlives its process: whenever that is killed, the next one finds only blocks with the right bytes."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from hypothesis.strategies import integers

from pontil.runtime.cache.block_recorder import STEP_SHARE, BlockRecorder
from pontil.runtime.cache.block_records import HEADER_BYTES, MOST_KEYS, RECORD_BYTES, BlockRecords, size_of
from pontil.runtime.cache.follower_records import left_in
from pontil.runtime.cache.kept_pool import KeptPool
from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.prefix import Key, chain, root_key
from pontil.runtime.cache.storage import EPOCH_SLOTS, KVStorage

LAYOUT, CPU, BLOCKS = KVLayout(8, 1, 1, 4, "float32"), torch.device("cpu"), 9
SAME, OTHER = bytes(32), bytes(31) + b"\x01"


class TickingClock:
    """Clock that goes on by a second at each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@dataclass
class Launcher:
    """The holder of the two files of a worker."""

    blocks: int = field(default_factory=lambda: os.memfd_create("blocks"))
    records: int = field(default_factory=lambda: os.memfd_create("records"))
    epochs: Iterator[int] = field(default_factory=lambda: count(1000, 1000))

    def start(self, identity: bytes = SAME, num_blocks: int = BLOCKS) -> "Process":
        kept = KeptPool(os.dup(self.blocks), os.dup(self.records), identity)
        storage = kept.open(LAYOUT, num_blocks, CPU, next(self.epochs))
        pool = BlockPool(num_blocks)
        return Process(storage, pool, kept.recorder(storage, pool, TickingClock()))

    def close(self) -> None:
        os.close(self.blocks)
        os.close(self.records)


@dataclass
class Process:
    """A process that is killed by forgetting it."""

    storage: KVStorage
    pool: BlockPool
    recorder: BlockRecorder

    def content(self, block: int) -> int:
        """The number that every word of a block has; −1 if they differ."""
        words = self.storage.shared[block].view(torch.int32)
        return int(words[0]) if bool((words == words[0]).all()) else -1

    def fill(self, block: int, number: int) -> None:
        self.storage.shared[block].view(torch.int32).fill_(number)

    def found(self, key: Key) -> int | None:
        block = self.pool.index.find(key)
        return None if block is None else self.content(block)

    def compute(self, number: int, final: bool = True) -> int:
        """Compute a block that is found by its number, and release it."""
        blocks = self.pool.take(1)
        assert blocks is not None
        self.fill(blocks[0], number)
        self.pool.index.add(key_of(number), blocks[0], final)
        self.pool.release(blocks)
        return blocks[0]


def key_of(number: int) -> Key:
    return chain(root_key(""), [number])


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    made = Launcher()
    yield made
    made.close()


class KeptPoolHistory(RuleBasedStateMachine):
    """Blocks are computed, filled up, found, released and evicted, their records are written now and then, and the
    process is killed at any moment. Each number is the content of one block at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.launcher = Launcher()
        self.process = self.launcher.start()
        self.numbers = count(1)
        self.owned: list[tuple[int, bool]] = []
        self.recorded: dict[Key, int] = {}

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
        expected = {
            key: before.content(block)
            for block, keys in before.pool.index.keys.items()
            for key in keys[:MOST_KEYS]
            if block not in before.recorder.pending and block not in before.recorder.unfinished
        }
        idle = [block for block in before.pool.idle if block not in before.recorder.pending]
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


def test_the_next_process_finds_what_was_recorded(launcher: Launcher) -> None:
    first = launcher.start()
    blocks = [first.compute(number) for number in (11, 12, 13)]
    first.recorder.rest(100.0)
    second = launcher.start()
    assert [second.found(key_of(number)) for number in (11, 12, 13)] == [11, 12, 13]
    assert list(second.pool.idle) == blocks and second.pool.highest == 3 and second.recorder.restored == 3
    assert second.pool.available == BLOCKS - 1


def test_blocks_that_were_not_recorded_are_dropped_and_zeroed(launcher: Launcher) -> None:
    first = launcher.start()
    recorded = first.compute(11)
    first.recorder.rest(100.0)
    dropped = first.compute(12)
    second = launcher.start()
    assert second.found(key_of(11)) == 11 and second.found(key_of(12)) is None
    assert second.content(recorded) == 11 and second.content(dropped) == 0


def test_a_block_that_is_not_full_is_recorded_when_nobody_can_write_on(launcher: Launcher) -> None:
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
def test_a_flipped_bit_in_a_block_drops_that_block_alone(launcher: Launcher, bit: int) -> None:
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


def test_a_damaged_block_that_nobody_asks_for_is_zeroed_before_it_is_used_again(launcher: Launcher) -> None:
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
def test_blocks_of_another_model_or_size_are_given_back(launcher: Launcher, identity: bytes, num_blocks: int) -> None:
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


def test_epochs_of_a_kept_pool_are_later_than_all_before(launcher: Launcher) -> None:
    first = launcher.start()
    first.storage.set_epoch(3, 1000 + EPOCH_SLOTS + 7)
    launcher.epochs = iter([10**6])
    second = launcher.start()
    assert int(second.storage.epochs.min()) == 10**6 and len(set(second.storage.epochs.tolist())) == EPOCH_SLOTS
    assert second.storage.identity != first.storage.identity


def test_memory_is_counted_once(launcher: Launcher) -> None:
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


def test_recording_takes_its_share_of_steps_and_no_more(launcher: Launcher) -> None:
    """Each block takes a second of this clock: a hundred seconds of steps pay for one."""
    process = launcher.start()
    for number in range(11, 16):
        process.compute(number)
    process.recorder.after_step(1.0)
    assert len(process.recorder.pending) == 4, "a block is recorded even where a step pays for less"
    for _ in range(round(1 / STEP_SHARE) - 2):
        process.recorder.after_step(1.0)
    assert len(process.recorder.pending) == 4
    process.recorder.after_step(2.0)
    assert len(process.recorder.pending) == 3


class RankFiles:
    """The files of a worker of three ranks, whose followers obey at once, or not at all once they are `cut`."""

    def __init__(self) -> None:
        self.launchers = [Launcher() for _ in range(3)]
        self.cut = False

    def start(self) -> Process:
        kept = [KeptPool(os.dup(one.blocks), os.dup(one.records), SAME) for one in self.launchers]
        storages = [one.open(LAYOUT, BLOCKS, CPU, 1) for one in kept]
        self.storages = storages
        self.followers = [one.follower_records(each) for one, each in zip(kept[1:], storages[1:], strict=True)]
        pool = BlockPool(BLOCKS)
        return Process(storages[0], pool, kept[0].recorder(storages[0], pool, TickingClock(), self))

    @property
    def left(self) -> list[dict[int, int]]:
        return [left_in(one.told()) for one in self.followers]

    def record(self, block: int, tag: int) -> None:
        for one in self.followers:
            if not self.cut:
                one.obey([[block, tag]], [])

    def drop(self, blocks: Sequence[int]) -> None:
        for one in self.followers:
            if not self.cut:
                one.obey([], blocks)

    def compute(self, process: Process, number: int) -> int:
        block = process.compute(number)
        for storage in self.storages[1:]:
            storage.shared[block].view(torch.int32).fill_(number)
        return block

    def close(self) -> None:
        for one in self.launchers:
            one.close()


@pytest.fixture
def ranks() -> Iterator[RankFiles]:
    made = RankFiles()
    yield made
    made.close()


def test_a_block_is_left_where_every_rank_has_its_part(ranks: RankFiles) -> None:
    first = ranks.start()
    kept, damaged, late = (ranks.compute(first, number) for number in (11, 12, 13))
    first.recorder.rest(2.0)
    ranks.cut = True
    first.recorder.rest(1.0)
    ranks.storages[2].shared[damaged][1] ^= 1
    ranks.cut = False
    second = ranks.start()
    assert [second.found(key_of(number)) for number in (11, 12, 13)] == [11, None, None]
    assert second.recorder.restored == 1 and not second.recorder.damaged
    assert all(one.records.read(late) is None and one.records.read(kept) for one in ranks.followers)
    assert not ranks.storages[0].shared[damaged].any() and not ranks.storages[2].shared[damaged].any()


def test_a_rank_that_has_another_content_of_a_block_has_not_its_part(ranks: RankFiles) -> None:
    """No orders reach the followers: they keep the record and the bytes of what the driver has evicted."""
    first = ranks.start()
    block = ranks.compute(first, 11)
    first.recorder.rest(100.0)
    ranks.cut = True
    first.pool.discard(block)
    assert first.compute(12) == block
    first.recorder.rest(100.0)
    ranks.cut = False
    second = ranks.start()
    assert second.recorder.restored == 0 and second.found(key_of(12)) is None
    assert second.found(key_of(11)) is None


def test_followers_forget_what_the_driver_does_not_have(ranks: RankFiles) -> None:
    first = ranks.start()
    block = ranks.compute(first, 11)
    first.recorder.rest(100.0)
    first.recorder.records.clear(block)
    second = ranks.start()
    assert second.recorder.restored == 0
    assert all(one.records.read(block) is None for one in ranks.followers)


@given(st.binary(max_size=40))
def test_what_a_follower_says_is_read_or_tells_of_nothing(told: bytes) -> None:
    assert len(left_in(told)) <= len(told) // 16 and (len(told) % 16 == 0 or left_in(told) == {})
