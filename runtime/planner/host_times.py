# SPDX-License-Identifier: Apache-2.0
"""The host's own times: processor time of proxies and workers besides the model's steps."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from pontil.runtime.planner.device_profile import DeviceProfile, HostTimes
from pontil.runtime.planner.planned_site import PlannedSite, PlannedTopology, planned_model
from pontil.runtime.planner.planned_worker import PlannedWorker
from pontil.runtime.planner.step_costs import fitted
from pontil.runtime.planner.trial import Asked, PlannedLoad, PlannedTrial

# Streams at once in the trials that are measured, requests of each stream, and their tokens.
STREAMS, EACH, PROMPT, ANSWER = (1, 8, 32), 4, 64, 32
NOTHING = HostTimes(0.0, 0.0, 0.0, 0.0, 0.0)


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


def questions() -> Iterator[Asked]:
    """Yield prompts of which no two share a block."""
    number = 0
    while number < len(STREAMS) * max(STREAMS) * EACH:
        number += 1
        yield [100 + number, *range(100, 99 + PROMPT)], ANSWER


def worker_times(profile: DeviceProfile) -> tuple[float, float]:
    """Return the milliseconds of a worker's turn, and of each row in it, besides its step: those of the real worker in
    virtual time, whatever a step takes there. This process has a virtual world."""
    model = planned_model(replace(profile, host=NOTHING))
    asked, points = questions(), list[tuple[float, float, float]]()
    for streams in STREAMS:
        site = PlannedSite(PlannedTopology(0, 0, 1, "never"), model, 0)
        (worker,) = site.workers
        turns, steps = watched(worker)
        PlannedTrial(site, PlannedLoad(EACH * streams, streams), asked).run()
        rows = streams * EACH * ANSWER / steps.calls
        points.append((1.0, rows, (turns.seconds - steps.seconds) / steps.calls))
        site.close()
    turn, row = fitted(points)
    return 1e3 * turn.at(1.0), 1e3 * row


def watched(worker: PlannedWorker) -> tuple[ProcessorWatch, ProcessorWatch]:
    """Watch the turns of a worker, and its engine's steps in them."""
    turns, steps = ProcessorWatch(), ProcessorWatch()
    process: Any = worker
    engine: Any = worker.worker.machine.engine
    process.turn, engine.step = turns.timed(worker.turn), steps.timed(engine.step)
    return turns, steps
