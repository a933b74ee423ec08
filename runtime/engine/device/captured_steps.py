# SPDX-License-Identifier: Apache-2.0
"""Decode steps that are recorded once for each shape and started again as a whole, as CUDA graphs are."""

import logging
from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor

from pontil.runtime.engine.device.link import DeviceLink, RecordedStep

logger = logging.getLogger("pontil.engine")


class CapturedSteps:
    """The recorded steps of one engine, by shape. They share one pool of memory, of `bytes`, since only one of them
    runs at a time; results are used before the next one runs."""

    def __init__(self, link: DeviceLink) -> None:
        self.link, self.bytes = link, 0
        self.steps: dict[Hashable, RecordedStep] = {}
        self.pool: Any = None

    def record(self, shape: Hashable, run: Callable[[], Tensor]) -> None:
        """Record what `run` starts for a shape. It must read and write only memory whose address stays."""
        before = self.link.reserved()
        step = self.steps[shape] = self.link.capture(run, self.pool)
        self.pool = step.pool
        self.bytes += max(0, self.link.reserved() - before)

    def run(self, shape: Hashable, run: Callable[[], Tensor]) -> Tensor:
        """Return the result for a shape: by its recorded step, or of `run` if there is none."""
        step = self.steps.get(shape)
        if step is None:
            return run()
        step.replay()
        return step.result

    def drop(self) -> None:
        """Give up the recordings, also where something still refers to one of them."""
        for step in self.steps.values():
            step.drop()
        self.steps.clear()
        self.pool = None
