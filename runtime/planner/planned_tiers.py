# SPDX-License-Identifier: Apache-2.0
"""The memory tier of a planned worker: the real one over blocks of next to no bytes, with the times of real ones."""

from dataclasses import replace
from functools import partial

from pontil.runtime.cache.tier.chain import TierChain
from pontil.runtime.cache.tier.costs import TierCosts
from pontil.runtime.cache.tier.memory_tier import MemoryTier
from pontil.runtime.cache.tier.tier_store import STAGING_BYTES, TierRead, TierResult, TierStore
from pontil.runtime.planner.device_profile import WorkerSizes
from pontil.runtime.planner.shared_cores import CoreProcess
from pontil.runtime.planner.step_costs import StepCosts, StepWork
from pontil.runtime.worker.generate.worker import Worker

MEMORY = "memory"


class PlannedTierStore(TierStore):
    """A store of one worker, whose thread takes its time for each block, on the worker's cores."""

    def __init__(self, process: CoreProcess, worker: Worker, blocks: int, known: TierCosts, block_bytes: int) -> None:
        self.process, self.per_block = process, known.at_start[MEMORY]
        sockets, storage, size = worker.sockets, worker.machine.storage, worker.machine.layout.block_bytes
        chain = TierChain((MemoryTier(blocks * size, size),), size)
        staging = STAGING_BYTES // block_bytes * size
        super().__init__(storage, chain, known, sockets.poller.wake, sockets.failures, staging)

    def turn(self) -> float | None:
        before, pause = self.counts.stored + self.counts.loaded, super().turn()
        if pause is None:
            return None
        seconds = (self.counts.stored + self.counts.loaded - before) * self.per_block
        self.process.hold_up(seconds)
        return seconds

    def fetch(self, job: TierRead) -> TierResult:
        made = super().fetch(job)
        return replace(made, seconds={MEMORY: (made.good * self.per_block, made.good)} if made.good else {})

    def finish(self, done: TierResult) -> None:
        seconds = self.costs.base + done.good * self.per_block
        self.process.job(self.process.world.now() + seconds, partial(super().finish, done))


def tier_costs(costs: StepCosts, sizes: WorkerSizes) -> TierCosts:
    """Return what a worker measures at its start: a block of the tier takes as long as one that is pulled."""
    tokens = min(sizes.step_tokens, sizes.max_model_len - 1)
    prompt = costs.step(StepWork(0, 0.0, tokens, tokens * (tokens + 1) / 2))
    per_block = costs.pulls.growth
    return TierCosts(prompt / tokens, max(0.0, costs.pull(1) - per_block), {MEMORY: per_block})
