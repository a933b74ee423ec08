# SPDX-License-Identifier: Apache-2.0
"""The tiers of a planned worker: the real chain and store over blocks of next to no bytes, with the times of real
ones."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from pontil.runtime.cache.prefix import Key
from pontil.runtime.cache.tier.chain import TierChain
from pontil.runtime.cache.tier.costs import TierCosts
from pontil.runtime.cache.tier.disk_tier import slots_of
from pontil.runtime.cache.tier.memory_tier import MemoryTier
from pontil.runtime.cache.tier.tier import Block
from pontil.runtime.cache.tier.tier_store import STAGING_BYTES, TierResult, TierStore
from pontil.runtime.planner.device_profile import DeviceProfile
from pontil.runtime.planner.shared_cores import CoreProcess
from pontil.runtime.planner.step_costs import StepCosts, StepWork
from pontil.runtime.worker.generate.worker import Worker

MEMORY, DISK = "memory", "disk"


@dataclass(frozen=True, slots=True)
class TierTimes:
    """The seconds of a block of one tier: written, read, and read as a worker measures it at its start."""

    write: float
    read: float
    at_start: float


@dataclass(frozen=True, slots=True)
class TierBlocks:
    """The blocks of a worker's tiers."""

    memory: int = 0
    disk: int = 0

    @classmethod
    def of(cls, memory: int, disk: int, block_bytes: int) -> "TierBlocks":
        """Return those of tiers of so many bytes."""
        return cls(memory // block_bytes, slots_of(disk, block_bytes))

    def __bool__(self) -> bool:
        return bool(self.memory or self.disk)

    def used(self, costs: StepCosts, profile: DeviceProfile) -> Iterator[tuple[str, int, TierTimes]]:
        """Yield those from which a block is read sooner than it is computed, the fastest first: a worker uses no
        others."""
        block, disk = costs.pulls.growth, profile.disk
        # A block in memory takes as long as one that is pulled.
        each = (
            (MEMORY, self.memory, TierTimes(block, block, block)),
            (DISK, self.disk, TierTimes(disk.write / 1e3, disk.read / 1e3, disk.cold_read / 1e3)),
        )
        for name, blocks, times in each:
            known = TierCosts(seconds_of_token(costs, profile), 0.0, {name: times.at_start})
            if blocks and known.least(name, profile.sizes.block_tokens) is not None:
                yield name, blocks, times


class PlannedTier(MemoryTier):
    """A tier whose reads and writes take their time of the thread that makes them."""

    def __init__(self, process: CoreProcess, name: str, blocks: int, size: int, times: TierTimes) -> None:
        super().__init__(blocks * size, size)
        self.name, self.world, self.times = name, process.world, times

    def put(self, key: Key, block: Block, digest: int) -> None:
        super().put(key, block, digest)
        self.world.spend(self.times.write)

    def get(self, key: Key, into: Block) -> int | None:
        self.world.spend(self.times.read)
        return super().get(key, into)


class PlannedTierStore(TierStore):
    """The store of one worker, whose thread is on the worker's cores, and free at `free_at`."""

    def __init__(
        self, process: CoreProcess, worker: Worker, blocks: TierBlocks, costs: StepCosts, profile: DeviceProfile
    ) -> None:
        self.process, self.free_at = process, 0.0
        sockets, storage, size = worker.sockets, worker.machine.storage, worker.machine.layout.block_bytes
        used = list(blocks.used(costs, profile))
        tiers = tuple(PlannedTier(process, name, count, size, times) for name, count, times in used)
        # Of a read besides its blocks: as much as of a pull.
        base = max(0.0, costs.pull(1) - costs.pulls.growth)
        known = TierCosts(seconds_of_token(costs, profile), base, {name: times.at_start for name, _, times in used})
        staging = STAGING_BYTES // profile.sizes.block_bytes * size
        super().__init__(storage, TierChain(tiers, size), known, sockets.poller.wake, sockets.failures, staging)

    def turn(self) -> float | None:
        now = self.process.world.now()
        if now < self.free_at and not self.thread.closing.is_set():
            return self.free_at - now
        pause = super().turn()
        if pause is not None:
            # The time that the tiers took has passed here.
            self.free_at = self.process.world.now()
            self.process.hold_up(self.free_at - now)
        return pause

    def finish(self, done: TierResult) -> None:
        self.process.job(self.process.world.now() + self.costs.base, partial(super().finish, done))


def seconds_of_token(costs: StepCosts, profile: DeviceProfile) -> float:
    """Return what a worker measures at its start: the seconds of a token of a prompt that fills a step."""
    tokens = min(profile.sizes.step_tokens, profile.sizes.max_model_len - 1)
    return costs.step(StepWork(0, 0.0, tokens, tokens * (tokens + 1) / 2)) / tokens
