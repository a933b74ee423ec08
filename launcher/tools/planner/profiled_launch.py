# SPDX-License-Identifier: Apache-2.0
"""A launch with one worker, started to see what it takes to start, and its proxy for requests and events."""

import asyncio
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from pontil.launcher.child.child import child_command
from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.plan.child_plan import ChildPlan
from pontil.launcher.tools.bench.bench_run import BenchRun, Load
from pontil.launcher.tools.bench.questions import fixed
from pontil.launcher.tools.bench.stream_client import BenchTarget
from pontil.runtime.planner.device_profile import HostTimes
from pontil.runtime.planner.profile_loads import LOADS, ProfileLoad, solved

PROXY, WORKER = re.compile(r"proxy(:\d+)?"), re.compile(r"mixed:0")
READY = re.compile(r"ready on (http\S+) after ([\d.]+) s")
# Seconds that a launch may take to end when it is told to.
ENDS_WITHIN = 60.0
# The longest silence of a stream.
SILENCE_WITHIN = 300.0
# Token ids that every vocabulary has.
VOCABULARY = 250
# Runs of each load.
RUNS = 3
# Lines of a launch's log that say why it failed.
LAST_LINES = 5


@dataclass(frozen=True, slots=True)
class ProfiledLaunch:
    """A launch that serves at `url`, and took so many seconds to start."""

    url: str
    start: float
    process: "subprocess.Popen[str]"

    def seconds_of(self, names: re.Pattern[str]) -> float:
        """Return the processor time so far of its processes with such names."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return sum(processor_seconds(one) for one in children if names.fullmatch(name_of(one)))


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
    worker: tuple[float, ...] | None


@contextmanager
def launched(words: Sequence[str]) -> "Iterator[ProfiledLaunch]":
    """A launch with these flags, ended behind its use. Raises LaunchError with what it said if it does not serve."""
    command = [*child_command("launch"), *words, "--port", "0"]
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


def wait_for(process: "subprocess.Popen[str]") -> ProfiledLaunch:
    """Read the log until the launch serves. It has limits of its own for its start."""
    assert process.stderr is not None
    said = list[str]()
    for line in process.stderr:
        said.append(line.strip())
        if found := READY.search(line):
            return ProfiledLaunch(found[1], float(found[2]), process)
    raise LaunchError(f"a launch to be measured did not serve: {' '.join(said[-LAST_LINES:])}")


def launch_times(launch: ProfiledLaunch, model: str, worker: ChildPlan) -> LaunchTimes:
    """Put all loads on a launch that nobody else uses, with this worker. Raises LaunchError."""
    target = BenchTarget(launch.url, model)
    seconds_of(launch, target, ProfileLoad(1, 1, 1, 32))
    proxy, workers, client = zip(*(least_of(launch, target, load) for load in LOADS), strict=True)
    (request, event, token), asked = (
        (1e3 * one for one in solved(proxy)),
        [round(1e3 * one, 5) for one in solved(client)],
    )
    host = HostTimes(0.0, 0.0, round(request, 4), round(event, 4), launch.start, 0.0, round(token, 5), *asked)
    # Other threads and ranks, and a GPU, take time of their own.
    is_alone = worker.device == "cpu" and len(worker.cores) == 1 and worker.ranks == 1
    return LaunchTimes(host, workers if is_alone else None)


def least_of(launch: ProfiledLaunch, target: BenchTarget, load: ProfileLoad) -> tuple[float, ...]:
    """Return the least processor times of some runs of a load: what the rest of a machine does only adds."""
    return tuple(map(min, zip(*(seconds_of(launch, target, load) for _ in range(RUNS)), strict=True)))


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
