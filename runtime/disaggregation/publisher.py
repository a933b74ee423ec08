# SPDX-License-Identifier: Apache-2.0
"""Makes blocks readable for peers, and digests them."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.threads import JobThread, ThreadFailures

# Digests in the order (block, head group).
Done = Callable[[list[int]], None]


@dataclass(frozen=True, slots=True)
class PublishedBlocks:
    """Blocks to be made readable, and the head groups that this rank gives of them. A peer that opens a GPU's memory
    itself needs no copy of them in host memory: they are then not `staged`. They are final at `mark`, or behind
    everything that was started so far."""

    blocks: Sequence[int]
    groups: Sequence[range]
    staged: bool
    mark: Any = None


class Publisher(Protocol):
    def publish(self, wanted: PublishedBlocks, done: Done) -> None:
        """Make blocks readable as they are once they are final. `done` gets the digests, from any thread."""

    def forget(self, blocks: Sequence[int]) -> None:
        """Give back the host memory of blocks that were published staged, once for each time."""

    def close(self) -> None: ...


class HostPublisher:
    """The publisher of a pool in host memory, which peers map: there is nothing to wait for."""

    def __init__(self, storage: KVStorage) -> None:
        self.storage = storage

    def publish(self, wanted: PublishedBlocks, done: Done) -> None:
        done(in_rows([self.storage.digests(wanted.blocks, group) for group in wanted.groups]))

    def forget(self, blocks: Sequence[int]) -> None:
        return

    def close(self) -> None:
        return


@dataclass(frozen=True, slots=True)
class DeviceTask:
    """Something to do once a device is past `mark`. Without `wanted`, the memory of blocks is given back."""

    mark: Any
    wanted: PublishedBlocks | None
    done: Done | None
    forgotten: Sequence[int] = ()


class DevicePublisher:
    """The publisher of a pool in a GPU's memory. A thread of its own waits for the device, so that the engine's step
    does not. `wake` is called, from that thread, when digests are known."""

    def __init__(self, storage: KVStorage, wake: Callable[[], None], failures: ThreadFailures | None = None) -> None:
        assert storage.memory is not None
        self.storage, self.memory, self.wake = storage, storage.memory, wake
        # The thread's own: how often each block is staged.
        self.staged: Counter[int] = Counter()
        self.tasks: JobThread[DeviceTask] = JobThread(self.carry_out, "publisher", failures)
        self.tasks.start()

    def publish(self, wanted: PublishedBlocks, done: Done) -> None:
        if wanted.blocks:
            mark = self.memory.mark() if wanted.mark is None else wanted.mark
            self.tasks.put(DeviceTask(mark, wanted, done))
        else:
            done([])

    def forget(self, blocks: Sequence[int]) -> None:
        if blocks:
            self.tasks.put(DeviceTask(None, None, None, list(blocks)))

    def close(self) -> None:
        self.tasks.close()

    def carry_out(self, task: DeviceTask) -> None:
        if task.wanted is None or task.done is None:
            self.clear(task.forgotten)
        else:
            task.done(self.publish_now(task.mark, task.wanted))
            self.wake()

    def publish_now(self, mark: Any, wanted: PublishedBlocks) -> list[int]:
        with self.memory.after(mark):
            if wanted.staged:
                self.staged.update(wanted.blocks)
                self.storage.stage(wanted.blocks)
            return in_rows([self.storage.own_digests(wanted.blocks, group) for group in wanted.groups])

    def clear(self, blocks: Sequence[int]) -> None:
        """Give back what no other transfer needs."""
        self.staged.subtract(blocks)
        unused_blocks = [block for block in set(blocks) if self.staged[block] <= 0]
        for block in unused_blocks:
            del self.staged[block]
        self.storage.forget(unused_blocks)


def in_rows(columns: list[list[int]]) -> list[int]:
    """Order the digests of each head group by block, then by group."""
    return [digest for row in zip(*columns, strict=True) for digest in row]


def publisher_for(
    storage: KVStorage, wake: Callable[[], None], failures: ThreadFailures | None = None
) -> HostPublisher | DevicePublisher:
    return DevicePublisher(storage, wake, failures) if storage.staged else HostPublisher(storage)
