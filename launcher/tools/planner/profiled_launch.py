# SPDX-License-Identifier: Apache-2.0
"""A launch with one worker, started to see what it takes to start, and its proxy for requests and events."""

import asyncio
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from types import FrameType
from typing import Any

import psutil

from pontil.launcher.child.child import child_command
from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.foundation.server_client import fetch
from pontil.launcher.plan.child_plan import ChildPlan
from pontil.launcher.tools.bench.bench_run import BenchRun, Load
from pontil.launcher.tools.bench.questions import fixed
from pontil.launcher.tools.bench.stream_client import BenchTarget
from pontil.runtime.planner.device_profile import HostTimes
from pontil.runtime.planner.profile_loads import LOADS, ProfileLoad, solved
from pontil.runtime.planner.typical_times import TypicalTimes

PROXY, WORKER = re.compile(r"proxy(:\d+)?"), re.compile(r"mixed:0")
READY = re.compile(r"ready on (http\S+) after ([\d.]+) s")
# Seconds that a launch may take to end when it is told to.
ENDS_WITHIN = 60.0
# The longest silence of a stream.
SILENCE_WITHIN = 300.0
# Token ids that every vocabulary has.
VOCABULARY = 250
# The processes that are measured.
MEASURED = "proxy", "worker", "client"
# Lines of a launch's log that say why it failed.
LAST_LINES = 5
# Seconds between looks at a worker that was killed, and until another one has to serve in its place.
LOOK, BACK_WITHIN = 0.02, 600.0


@dataclass(frozen=True, slots=True)
class ProfiledLaunch:
    """A launch that serves at `url`, and took so many seconds to start."""

    url: str
    start: float
    process: "subprocess.Popen[str]"

    def processes(self, names: re.Pattern[str]) -> list[psutil.Process]:
        """Return its processes with such names."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [one for one in children if names.fullmatch(name_of(one))]

    def seconds_of(self, names: re.Pattern[str]) -> float:
        """Return the processor time so far of its processes with such names."""
        return sum(map(processor_seconds, self.processes(names)))

    def kill(self, names: re.Pattern[str]) -> None:
        """Kill its processes with such names."""
        for process in self.processes(names):
            process.kill()


def processor_seconds(process: psutil.Process) -> float:
    """Return the processor time of a process so far, in ticks of 10 ms where the kernel counts no nanoseconds."""
    try:
        tasks = list(Path(f"/proc/{process.pid}/task").iterdir())
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except OSError:
        return float(sum(process.cpu_times()[:2]))


def name_of(process: psutil.Process) -> str:
    """Return the name of a child of a launch, which is behind the word `child`."""
    words = process.cmdline()
    return words[words.index("child") + 1] if "child" in words[:-1] else ""


@dataclass(frozen=True, slots=True)
class LaunchTimes:
    """The host's times of a launch without those of its worker, and the seconds that this took for each of the loads
    of a profile, if they are those of its steps."""

    host: HostTimes
    worker: Sequence[float] | None


@contextmanager
def launched(words: Sequence[str]) -> "Iterator[ProfiledLaunch]":
    """A launch with these flags, ended behind its use, also where this process is told to end. Raises LaunchError with
    what it said if it does not serve."""
    command = [*child_command("launch"), *words, "--port", "0"]
    with ended_by_sigterm():
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        try:
            yield wait_for(process)
        finally:
            process.terminate()
            try:
                process.communicate(timeout=ENDS_WITHIN)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Have SIGTERM end this process as an exception does, so that what it began is ended."""
    before = signal.signal(signal.SIGTERM, end_at_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end_at_once(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def wait_for(process: "subprocess.Popen[str]") -> ProfiledLaunch:
    """Read the log until the launch serves. It has limits of its own for its start."""
    assert process.stderr is not None
    said = list[str]()
    for line in process.stderr:
        said.append(line.strip())
        if found := READY.search(line):
            return ProfiledLaunch(found[1], float(found[2]), process)
    why = " ".join(line.removeprefix("Error: ") for line in said[-LAST_LINES:])
    raise LaunchError(f"a launch to be measured did not serve: {why}")


class LaunchMeter:
    """Measures launches with these flags, each with one worker and nobody else who uses it, whose processor time is
    compared with that of its steps: so a launch is measured for each pass of these. They run on the cores that this
    process has now. Raises LaunchError."""

    def __init__(self, words: Sequence[str], model: str, worker: ChildPlan) -> None:
        self.words, self.model, self.worker = words, model, worker
        self.cores = os.sched_getaffinity(0)
        self.times = TypicalTimes[tuple[str, ProfileLoad]]()
        self.starts, self.restarts = list[float](), list[float]()

    @property
    def is_alone(self) -> bool:
        """True where the worker's processor time is that of its steps and its turns. Other threads and ranks, and a
        GPU, take time of their own."""
        return self.worker.device == "cpu" and len(self.worker.cores) == 1 and self.worker.ranks == 1

    def measure(self, runs: int = 1) -> None:
        """Put each load so many times on a launch, and then kill its worker."""
        kept = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.cores)
        try:
            with launched(self.words) as launch:
                self.starts.append(launch.start)
                target = BenchTarget(launch.url, self.model)
                seconds_of(launch, target, ProfileLoad(1, 1, 1, 32))
                for load in runs * LOADS:
                    found = seconds_of(launch, target, load)
                    self.times.add(((name, load), one) for name, one in zip(MEASURED, found, strict=True))
                self.restarts.append(asyncio.run(restart_of(launch)))
        finally:
            os.sched_setaffinity(0, kept)

    def result(self) -> LaunchTimes:
        found = self.times.seconds()
        proxy, workers, client = ([found[name, load] for load in LOADS] for name in MEASURED)
        times = {
            f"{name}_{what}": round(1e3 * one, 5)
            for name, seconds in (("proxy", proxy), ("client", client))
            for what, one in solved(seconds)._asdict().items()
        }
        start, restart = round(fmean(self.starts), 1), round(fmean(self.restarts), 2)
        host = HostTimes(worker_turn=0.0, worker_row=0.0, start_seconds=start, restart_seconds=restart, **times)
        return LaunchTimes(host, workers if self.is_alone else None)


def seconds_of(launch: ProfiledLaunch, target: BenchTarget, load: ProfileLoad) -> tuple[float, float, float]:
    """Return the processor time for a load: of the proxy, the worker, and the client, which is this process. Raises
    LaunchError."""
    before = launch.seconds_of(PROXY), launch.seconds_of(WORKER), time.process_time()
    # Of several runs no two have a prompt in common.
    questions = fixed(load.prompt, load.tokens, VOCABULARY, seed=time.monotonic_ns())
    made = asyncio.run(BenchRun(target, questions, load.requests, SILENCE_WITHIN).run(Load(concurrency=load.streams)))
    after = launch.seconds_of(PROXY), launch.seconds_of(WORKER), time.process_time()
    if made.failures:
        raise LaunchError(f"a request to the measured launch failed: {made.failures[0]}")
    proxy, worker, client = (later - earlier for earlier, later in zip(before, after, strict=True))
    return proxy, worker, client


async def restart_of(launch: ProfiledLaunch) -> float:
    """Kill the worker of a launch, for the first time; return the seconds until its supervisor has another one serve.
    Raises LaunchError."""
    begun = time.monotonic()
    launch.kill(WORKER)
    while (passed := time.monotonic() - begun) < BACK_WITHIN:
        rows = fetch(launch.url, "/admin/topology")["processes"]
        if any(WORKER.fullmatch(row["name"]) and row["restarts"] and row["state"] == "READY" for row in rows):
            return passed
        await asyncio.sleep(LOOK)
    raise LaunchError(f"the worker of a measured launch was killed, and not back within {BACK_WITHIN:.0f} s.")


def words_of(given: dict[str, Any]) -> list[str]:
    """Return flags as words of a command line."""
    words = list[str]()
    for name, value in given.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words += [f"--{flag}", str(value)]
    return words
