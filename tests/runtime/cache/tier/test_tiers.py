# SPDX-License-Identifier: Apache-2.0
"""Tiers keep the most recently used blocks, give back what was stored, and never other bytes."""

import errno
import fcntl
import os
import resource
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from open_resources import nothing_left_open

from pontil.gpu_ops.kv.digest import block_digests, digest_weights
from pontil.runtime.cache.tier import disk_tier
from pontil.runtime.cache.tier.chain import TierChain
from pontil.runtime.cache.tier.disk_tier import NOTHING, RECORD_BYTES, DiskTier
from pontil.runtime.cache.tier.memory_tier import MemoryTier
from pontil.runtime.cache.tier.tier import Block, KVTier

SIZE = 256
SLOT = disk_tier.PAGE + RECORD_BYTES
WEIGHTS = digest_weights(SIZE // 8)
Step = tuple[str, int]
STEPS = st.lists(st.tuples(st.sampled_from(["store", "store", "read", "drop"]), st.integers(0, 9)), max_size=40)


def key_of(number: int) -> bytes:
    return number.to_bytes(16, "little")


def block_of(number: int, turn: int = 0) -> Block:
    return np.random.default_rng([number, turn]).integers(0, 256, SIZE, dtype=np.uint8)


def digest_of(block: Block) -> int:
    return block_digests(block[None], [0], WEIGHTS)[0]


def read(tier: KVTier, number: int) -> Block | None:
    """Return a block as it may be used: only with the digest that it was stored with."""
    into = np.zeros(SIZE, dtype=np.uint8)
    digest = tier.get(key_of(number), into)
    return into if digest is not None and digest == digest_of(into) else None


def on_disk(folder: Path, blocks: int = 4, identity: str = "one", name: str = "decode:0") -> DiskTier:
    return DiskTier(folder, name, blocks * SLOT, SIZE, identity)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_tier_is_a_bounded_table(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    @settings(max_examples=examples(20, 200))
    @given(STEPS)
    def follow(steps: list[Step]) -> None:
        folder = tmp_path_factory.mktemp("tier")
        tier: KVTier = MemoryTier(4 * SIZE, SIZE) if kind == "memory" else on_disk(folder)
        chain, expected = TierChain((tier,), SIZE), OrderedDict[int, Block]()
        assert tier.capacity == 4
        for turn, (step, number) in enumerate(steps):
            key, block = key_of(number), block_of(number, turn)
            if step == "store":
                chain.store(key, block, digest_of(block))
                # The block of a key is never replaced: equal keys mean equal bytes.
                expected.setdefault(number, block)
                expected.move_to_end(number)
                if len(expected) > 4:
                    expected.popitem(last=False)
            elif step == "drop":
                chain.drop(key)
                expected.pop(number, None)
            else:
                into = np.zeros(SIZE, dtype=np.uint8)
                found = chain.read(key, into)
                assert (found is not None) == (number in expected)
                if found is not None:
                    assert np.array_equal(into, expected[number]) and found.digest == digest_of(into)
                    expected.move_to_end(number)
            assert len(tier) == len(expected) and all(key_of(one) in tier for one in expected)
            assert tier.eldest() == (key_of(next(iter(expected))) if len(expected) == 4 else None)
        chain.close()

    follow()


@settings(max_examples=examples(20, 200))
@given(STEPS)
def test_what_leaves_a_tier_goes_to_the_next(steps: list[Step]) -> None:
    first, second = MemoryTier(2 * SIZE, SIZE), MemoryTier(3 * SIZE, SIZE)
    chain, stored = TierChain((first, second), SIZE), dict[int, Block]()
    for turn, (step, number) in enumerate(steps):
        before = {*first.entries, *second.entries}
        if step == "store":
            if key_of(number) not in before:
                stored[number] = block_of(number, turn)
            chain.store(key_of(number), stored[number], digest_of(stored[number]))
            assert key_of(number) in first
            # A full pair loses one block at most: a block in both has room for another.
            assert len(before - {*first.entries, *second.entries}) <= 1
        elif step == "drop":
            chain.drop(key_of(number))
            assert chain.tier_of(key_of(number)) is None
        else:
            into = np.zeros(SIZE, dtype=np.uint8)
            found = chain.read(key_of(number), into)
            assert found is None or np.array_equal(into, stored[number])


class Crash(Exception):
    """The end of the process in the middle of a write."""


@contextmanager
def crash_after(writes: int, part: float) -> Iterator[None]:
    """Let so many writes happen, then a part of one more, and nothing after that."""
    real, left = os.pwrite, writes

    def pwrite(file: int, data: memoryview, at: int) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            if left == -1:
                real(file, bytes(data)[: int(part * len(data))], at)
            raise Crash
        return real(file, data, at)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        yield


def kill(tier: DiskTier) -> None:
    """Leave the files as they are, and their locks."""
    for file in (tier.blocks, tier.index, tier.folder):
        os.close(file)


@settings(max_examples=examples(36, 600))
@given(STEPS, st.integers(0, 60), st.floats(0, 1))
def test_wherever_it_ends_a_disk_gives_back_right_bytes(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step], writes: int, part: float
) -> None:
    folder = tmp_path_factory.mktemp("tier")
    tier = on_disk(folder)
    chain, stored, given_once = chain_of(tier), dict[int, Block](), dict[int, list[Block]]()
    # The blocks that the last step may change.
    open_to_change: set[int] = set()
    with crash_after(writes, part), suppress(Crash):
        for turn, (step, number) in enumerate(steps):
            open_to_change = {number}
            if step == "store" and key_of(number) not in tier:
                leaving, block = tier.eldest(), block_of(number, turn)
                gone = None if leaving is None else int.from_bytes(leaving, "little")
                open_to_change |= set() if gone is None else {gone}
                given_once.setdefault(number, []).append(block)
                chain.store(key_of(number), block, digest_of(block))
                if gone is not None:
                    del stored[gone]
                stored[number] = block
            elif step == "drop":
                chain.drop(key_of(number))
                stored.pop(number, None)
            open_to_change = set()
    kill(tier)
    after = on_disk(folder)
    for number in range(10):
        found = read(after, number)
        if number in open_to_change:
            assert found is None or any(np.array_equal(found, one) for one in given_once[number])
        else:
            assert (found is None) == (number not in stored)
            assert found is None or np.array_equal(found, stored[number])
    assert len(after.entries) + len(after.free) == after.capacity
    after.close()


@settings(max_examples=examples(24, 400))
@given(st.data())
def test_a_damaged_disk_gives_back_right_bytes_or_none(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("tier")
    tier = on_disk(folder)
    for number in range(4):
        tier.put(key_of(number), block_of(number), digest_of(block_of(number)))
    tier.close()
    path = tier.path / data.draw(st.sampled_from(["blocks", "index"]))
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(content) - 1))
            content[at : at + 8] = data.draw(st.binary(min_size=1, max_size=8))
    else:
        # Records, or slots, that changed places.
        unit = RECORD_BYTES if path.name == "index" else disk_tier.PAGE
        one, other = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
        a, b = slice(one * unit, (one + 1) * unit), slice(other * unit, (other + 1) * unit)
        content[a], content[b] = content[b], content[a]
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    again = on_disk(folder)
    for number in range(4):
        found = read(again, number)
        assert found is None or np.array_equal(found, block_of(number))
    again.close()


def test_a_disk_keeps_what_it_has_for_the_next_process(tmp_path: Path) -> None:
    tier = on_disk(tmp_path)
    for number in range(6):
        chain_of(tier).store(key_of(number), block_of(number), digest_of(block_of(number)))
    kill(tier)
    again = on_disk(tmp_path)
    assert [key_of(number) in again for number in range(6)] == [False, False, True, True, True, True]
    chain_of(again).store(key_of(9), block_of(9), digest_of(block_of(9)))
    assert key_of(2) not in again and np.array_equal(read(again, 9), block_of(9))  # type: ignore[arg-type]
    again.close()


def chain_of(tier: KVTier) -> TierChain:
    return TierChain((tier,), SIZE)


@pytest.mark.parametrize("change", [{"identity": "two"}, {"blocks": 5}], ids=str)
def test_blocks_of_another_model_or_size_are_forgotten(
    tmp_path: Path, change: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    tier = on_disk(tmp_path)
    tier.put(key_of(1), block_of(1), digest_of(block_of(1)))
    tier.close()
    other = on_disk(tmp_path, **change)  # type: ignore[arg-type]
    assert len(other) == 0 and "is of another model, type, size or version: it begins empty" in caplog.text
    other.close()
    assert len(on_disk(tmp_path, **change)) == 0  # type: ignore[arg-type]


def test_files_are_closed_to_others_and_to_children(tmp_path: Path) -> None:
    (tmp_path / "decode-0").mkdir(mode=0o777)
    tier = on_disk(tmp_path)
    assert stat.S_IMODE(tier.path.stat().st_mode) == 0o700
    for name in ("index", "blocks"):
        assert stat.S_IMODE((tier.path / name).stat().st_mode) == 0o600
    for file in (tier.folder, tier.index, tier.blocks):
        assert fcntl.fcntl(file, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    # The room is taken at once, not when it is needed.
    assert (tier.path / "blocks").stat().st_blocks * 512 >= tier.capacity * tier.slot_bytes
    tier.probe(2, block_of(1))
    assert sorted(one.name for one in tier.path.iterdir()) == ["blocks", "index"]
    tier.close()


def link_folder(path: Path) -> None:
    path.symlink_to(path.parent)


def pipe_for_index(path: Path) -> None:
    path.mkdir()
    os.mkfifo(path / "index")


def link_for_blocks(path: Path) -> None:
    path.mkdir()
    (path / "blocks").symlink_to("/dev/null")


@pytest.mark.parametrize(
    "make", [Path.touch, link_folder, pipe_for_index, link_for_blocks], ids=lambda one: one.__name__
)
def test_what_is_no_folder_of_ours_is_not_used(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "decode-0")
    with pytest.raises(OSError):
        on_disk(tmp_path)


def test_no_two_processes_share_a_folder(tmp_path: Path) -> None:
    tier, other = on_disk(tmp_path), on_disk(tmp_path, name="decode:1")
    with nothing_left_open(), pytest.raises(BlockingIOError, match="another process uses it"):
        on_disk(tmp_path)
    tier.close()
    on_disk(tmp_path).close()
    other.close()


def test_a_full_disk_switches_the_tier_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    above, tier = MemoryTier(SIZE, SIZE), on_disk(tmp_path)
    chain = TierChain((above, tier), SIZE)
    chain.store(key_of(0), block_of(0), digest_of(block_of(0)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        chain.store(key_of(1), block_of(1), digest_of(block_of(1)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "the disk tier of the KV cache failed (File too large) and is switched off" in caplog.text
    assert chain.tiers == (above,) and chain.failures == 1 and chain.tier_of(key_of(1)) == "memory"
    chain.store(key_of(2), block_of(2), digest_of(block_of(2)))
    assert chain.tier_of(key_of(2)) == "memory" and chain.tier_of(key_of(1)) is None


def test_a_disk_without_room_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with nothing_left_open(), pytest.raises(OSError, match="File too large|No space left"):
        DiskTier(tmp_path, "x", 1 << 61, 1 << 40, "one")
    monkeypatch.setattr(disk_tier, "allocate", full)
    with nothing_left_open(), pytest.raises(OSError, match="No space left"):
        on_disk(tmp_path)


def test_a_closed_disk_writes_to_no_other_file(tmp_path: Path) -> None:
    tier = on_disk(tmp_path)
    tier.put(key_of(1), block_of(1), digest_of(block_of(1)))
    tier.close()
    with (tmp_path / "other").open("w+b"), (tmp_path / "another").open("w+b"):
        with pytest.raises(OSError, match="Bad file descriptor"):
            tier.put(key_of(2), block_of(2), 0)
        with pytest.raises(OSError, match="Bad file descriptor"):
            tier.drop(key_of(1))
    tier.close()
    assert not (tmp_path / "other").stat().st_size and not (tmp_path / "another").stat().st_size


def test_a_read_that_ends_early_is_no_block(tmp_path: Path) -> None:
    tier = on_disk(tmp_path)
    tier.put(key_of(1), block_of(1), digest_of(block_of(1)))
    os.truncate(tier.path / "blocks", 100)
    chain = chain_of(tier)
    assert chain.read(key_of(1), np.zeros(SIZE, dtype=np.uint8)) is None and len(tier) == 0 and chain.failures == 0
    assert (tier.path / "index").read_bytes()[RECORD_BYTES:].count(NOTHING[:32]) >= 2 * tier.capacity
    tier.close()
