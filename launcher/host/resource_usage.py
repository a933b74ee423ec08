# SPDX-License-Identifier: Apache-2.0
"""Resource usage of each child, sampled once a second without blocking.

psutil is imported inside of functions: it is a quarter of what the command line and every child would load.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pontil.launcher.host.gpu_memory import GpuMemory

if TYPE_CHECKING:
    from psutil import Process

# Seconds between samples; sampling one child takes 0.04 ms.
EVERY = 1.0


@dataclass(frozen=True, slots=True)
class ResourceSample:
    """Resident bytes (pages that several processes share count in each), percent of one core since the last sample, and
    bytes on GPUs (None if unknown)."""

    rss_bytes: int
    cpu_percent: float
    gpu_bytes: int | None = None


class ResourceUsage:
    """The newest sample by pid. The pids must be children that were not yet reaped, so that no pid was reused."""

    def __init__(self, gpus: GpuMemory | None) -> None:
        self.gpus = gpus
        self.due = 0.0
        self.processes: dict[int, Process] = {}
        self.usages: dict[int, ResourceSample] = {}

    def look(self, pids: Collection[int], now: float) -> None:
        """Sample once every EVERY seconds; calls in between do nothing."""
        if now < self.due:
            return
        self.due = now + EVERY
        self.processes = {pid: process for pid in pids if (process := self.processes.get(pid) or process_of(pid))}
        usages = {pid: usage for pid, process in self.processes.items() if (usage := measure(process))}
        on_gpus = self.gpus.look(now) if self.gpus else {}
        self.usages = {pid: replace(usage, gpu_bytes=on_gpus.get(pid)) for pid, usage in usages.items()}

    def close(self) -> None:
        if self.gpus:
            self.gpus.close()


def process_of(pid: int) -> "Process | None":
    from psutil import Error, Process

    try:
        return Process(pid)
    except Error:
        return None


def measure(process: "Process") -> ResourceSample | None:
    """Sample a process; None if it has ended. The first sample of a process cannot tell its load and says 0."""
    from psutil import Error

    try:
        with process.oneshot():
            return ResourceSample(process.memory_info().rss, process.cpu_percent(None))
    except Error:
        return None
