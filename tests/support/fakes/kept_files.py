# SPDX-License-Identifier: Apache-2.0
"""Pools in files that outlive a process, which is killed by being forgotten."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import torch

from pontil.runtime.cache.block_recorder import BlockRecorder
from pontil.runtime.cache.follower_records import left_in
from pontil.runtime.cache.kept_pool import KeptPool
from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.prefix import Key, chain, root_key
from pontil.runtime.cache.storage import KVStorage

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
class KeptFiles:
    """The holder of the two files of a worker."""

    blocks: int = field(default_factory=lambda: os.memfd_create("blocks"))
    records: int = field(default_factory=lambda: os.memfd_create("records"))
    epochs: Iterator[int] = field(default_factory=lambda: count(1000, 1000))

    def start(self, identity: bytes = SAME, num_blocks: int = BLOCKS) -> "KeptProcess":
        kept = KeptPool(os.dup(self.blocks), os.dup(self.records), identity)
        storage = kept.open(LAYOUT, num_blocks, CPU, next(self.epochs))
        pool = BlockPool(num_blocks)
        return KeptProcess(storage, pool, kept.recorder(storage, pool, TickingClock()))

    def close(self) -> None:
        os.close(self.blocks)
        os.close(self.records)


@dataclass
class KeptProcess:
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


class RankFiles:
    """The files of a worker of three ranks, whose followers obey at once, or not at all once they are `cut`."""

    def __init__(self) -> None:
        self.launchers = [KeptFiles() for _ in range(3)]
        self.cut = False

    def start(self) -> KeptProcess:
        kept = [KeptPool(os.dup(one.blocks), os.dup(one.records), SAME) for one in self.launchers]
        storages = [one.open(LAYOUT, BLOCKS, CPU, 1) for one in kept]
        self.storages = storages
        self.followers = [one.follower_records(each) for one, each in zip(kept[1:], storages[1:], strict=True)]
        pool = BlockPool(BLOCKS)
        return KeptProcess(storages[0], pool, kept[0].recorder(storages[0], pool, TickingClock(), self))

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

    def compute(self, process: KeptProcess, number: int) -> int:
        block = process.compute(number)
        for storage in self.storages[1:]:
            storage.shared[block].view(torch.int32).fill_(number)
        return block

    def close(self) -> None:
        for one in self.launchers:
            one.close()
