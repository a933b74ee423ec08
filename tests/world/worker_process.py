# SPDX-License-Identifier: Apache-2.0
"""The process of a worker of any kind: its turns, its commands, and what befalls its steps and pulls."""

import math
import signal
from abc import abstractmethod

from copying import EventConnector
from virtual_time import SeededWorld

from pontil.runtime.errors import PontilError
from pontil.runtime.reporting import Reporter
from pontil.runtime.wire.simulated.network import is_readable
from pontil.runtime.wire.simulated.processes import FAILED, WorldProcess
from pontil.runtime.worker.process.loop import WorkerLoop
from pontil.runtime.worker.process.workload import Workload

# Seconds of a turn besides its step, and of a step: at least, for each prompt token, and for each other row.
TURN = 50e-6
STEP, PROMPT_ROW, DECODE_ROW = 4e-3, 60e-6, 0.3e-3


def step_seconds(prompt_rows: int, decode_rows: int) -> float:
    return STEP + prompt_rows * PROMPT_ROW + decode_rows * DECODE_ROW


class WorkerProcess(WorldProcess):
    """The process of a worker. `worker` and its `loop` are the product's, once it is loaded."""

    worker: Workload | None = None
    loop: WorkerLoop | None = None

    def __init__(self, world: SeededWorld, name: str) -> None:
        super().__init__(world, name)
        # Steps and pulls take so many times as long, and a step of more rows finds no memory.
        self.slowness, self.most_rows = 1.0, math.inf
        self.is_ready = False
        self.report: Reporter | None = None

    @property
    @abstractmethod
    def connectors(self) -> list[EventConnector]:
        """The threads that carry out its pulls."""

    @property
    @abstractmethod
    def left(self) -> dict[str, int]:
        """All that it holds for requests, by name: 0 of each, once there are none."""

    @property
    @abstractmethod
    def has_requests(self) -> bool:
        """True if it has any."""

    def cost(self, prompt_rows: int, decode_rows: int) -> float:
        """Return the seconds of a step. Raises MemoryError."""
        if prompt_rows + decode_rows > self.most_rows:
            raise MemoryError
        return self.slowness * step_seconds(prompt_rows, decode_rows)

    def hear(self) -> None:
        """Take a turn if the supervisor has sent a command."""
        if self.loop is not None and self.loop.commands is not None:
            pipe = self.loop.commands.pipe
            if not pipe.closed and is_readable(pipe.descriptor):
                self.world.readable.add(pipe.descriptor)
                self.notify()

    def signal(self, number: signal.Signals) -> None:
        """Have SIGTERM stop a worker that serves, as `runtime/worker/entry.py` does; one that loads dies."""
        if number != signal.SIGTERM or self.loop is None:
            super().signal(number)
        else:
            self.loop.stopping = True
            self.notify()

    def turn(self) -> float | None:
        loop, report = self.loop, self.report
        assert loop is not None and report is not None
        try:
            loop.turn()
        except PontilError as error:
            self.world.note("exit", self, error)
            report.failed(str(error))
            self.acts(self.world.now(), lambda: self.exit(FAILED))
            return None
        if not self.is_ready and loop.link.is_registered(loop.now):
            self.is_ready = True
            report.ready(device="cpu")
        self.world.spend(TURN)
        if loop.stopping:
            loop.leave()
            self.acts(self.world.now(), lambda: self.exit(0))
            return None
        return self.world.now() + loop.patience

    def exit(self, code: int) -> None:
        """End by itself, as `runtime/worker/entry.py` does: the last messages to the proxies are still sent."""
        assert self.loop is not None
        with self.inside():
            self.loop.close()
        self.kill(code)
