# SPDX-License-Identifier: Apache-2.0
"""Disturbances of what is measured of a launch on this machine: other programs, and cores that are slow.

The cores of a virtual machine may be threads of cores that others use too: for seconds each is then about half as fast,
and nothing in the machine says so but the time that the same work takes. As a program, it does a little of always the
same on each core in turn, and writes down what that took:

    python scripts/machine_watch.py FILE
"""

import os
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import app  # noqa: E402, F401
from pontil.launcher.tools.planner.other_programs import busy_seconds  # noqa: E402

# About a millisecond of work each time, and the seconds between two.
WORK, PAUSE = 16_000, 0.1
WORKERS = ("mixed", "prefill", "decode")


class SpeedProbe:
    """A second process that does a little of always the same on each core in turn, and writes down what it took."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.process = subprocess.Popen([sys.executable, str(Path(__file__)), str(file)])

    def slowness(self, since: float) -> float:
        """Return how many times as long it took since a time, on average, as it ever did."""
        lines = [line.split() for line in self.file.read_text().splitlines()] if self.file.exists() else []
        best = dict[str, float]()
        for _, core, seconds in lines:
            best[core] = min(float(seconds), best.get(core, float(seconds)))
        some = [float(seconds) / best[core] for at, core, seconds in lines if float(at) >= since]
        return statistics.fmean(some) if some else 1.0

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def probe(path: Path) -> None:
    """Be that process, until who started it is gone."""
    parent, cores = os.getppid(), os.sched_getaffinity(0)
    with path.open("a") as file:
        while os.getppid() == parent:
            for core in sorted(cores):
                os.sched_setaffinity(0, {core})
                begun = time.process_time()
                sum(number * number for number in range(WORK))
                print(time.monotonic(), core, time.process_time() - begun, file=file, flush=True)
                time.sleep(PAUSE)


@dataclass(frozen=True, slots=True)
class SeenDisturbance:
    """The cores that other programs used in a run, how many times as slow the own ones were, and the seconds for which
    workers waited for theirs, of each second."""

    others: float = 0.0
    slowness: float = 1.0
    waited: float = 0.0

    def with_worst(self, other: "SeenDisturbance") -> "SeenDisturbance":
        return SeenDisturbance(*map(max, astuple(self), astuple(other)))

    @property
    def size(self) -> float:
        return self.others + self.slowness - 1


class MachineWatch:
    """Says how much a run with the launch of a process was disturbed since it was made."""

    def __init__(self, pid: int, probe: SpeedProbe) -> None:
        self.pid, self.probe, self.begun = pid, probe, time.monotonic()
        self.all, self.own, self.waited = busy_seconds(), self.own_seconds(), self.waited_seconds()

    def waited_seconds(self) -> float:
        """Return for how long the main threads of workers wanted a core so far."""
        seconds = 0.0
        for one in psutil.Process(self.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess, OSError):
                words = one.cmdline()
                if "child" in words and words[words.index("child") + 1].partition(":")[0] in WORKERS:
                    seconds += int(Path(f"/proc/{one.pid}/schedstat").read_text().split()[1]) / 1e9
        return seconds

    def own_seconds(self) -> float:
        root = psutil.Process(self.pid)
        seconds = float(sum(psutil.Process().cpu_times()[:2]))
        for one in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                seconds += sum(one.cpu_times()[:2])
        return seconds

    def seen(self) -> SeenDisturbance:
        passed = time.monotonic() - self.begun
        used = busy_seconds() - self.all - (self.own_seconds() - self.own)
        waited = max(0.0, self.waited_seconds() - self.waited)
        return SeenDisturbance(max(0.0, used / passed), self.probe.slowness(self.begun), waited / passed)


if __name__ == "__main__":
    probe(Path(sys.argv[1]))
