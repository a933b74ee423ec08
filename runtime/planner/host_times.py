# SPDX-License-Identifier: Apache-2.0
"""The loads of a profile in virtual time: what their steps take, and what the real worker does besides."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from pontil.runtime.planner.device_profile import DeviceProfile
from pontil.runtime.planner.planned_site import PlannedSite, PlannedTopology, planned_model
from pontil.runtime.planner.profile_loads import LOADS, ProfileLoad, ReplayedLoad
from pontil.runtime.planner.trial import Asked, PlannedLoad, PlannedTrial


class ProcessorWatch:
    """Adds up the processor seconds of calls. Virtual time does not replace the clock of the processor."""

    def __init__(self) -> None:
        self.seconds, self.calls = 0.0, 0

    def timed(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            begun = time.process_time()
            try:
                return work(*given)
            finally:
                self.seconds += time.process_time() - begun
                self.calls += 1

        return call


def questions(load: ProfileLoad) -> Iterator[Asked]:
    """Yield prompts of which no two share a block."""
    for number in range(load.requests):
        yield [100 + number, *range(100, 99 + load.prompt)], load.tokens


def replayed(profile: DeviceProfile) -> list[ReplayedLoad]:
    """Put all loads on a worker that takes no time besides its steps. This process has a virtual world."""
    host = replace(profile.host, worker_turn=0.0, worker_row=0.0, worker_token=0.0)
    model, found = planned_model(replace(profile, host=host)), list[ReplayedLoad]()
    for load in LOADS:
        site = PlannedSite(PlannedTopology(0, 0, 1, "never"), model, 0)
        (worker,) = site.workers
        turns, steps = ProcessorWatch(), ProcessorWatch()
        process: Any = worker
        engine: Any = worker.worker.machine.engine
        process.turn, engine.step = turns.timed(worker.turn), steps.timed(engine.step)
        PlannedTrial(site, PlannedLoad(load.requests, load.streams), questions(load)).run()
        found.append(ReplayedLoad(worker.runner.busy, steps.calls, turns.seconds - steps.seconds))
        site.close()
    return found
