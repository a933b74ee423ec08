# SPDX-License-Identifier: Apache-2.0
"""A launch with one worker, started to see what it takes to start, and its proxy for requests and events."""

import asyncio
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from pontil.launcher.child.child import child_command
from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.tools.bench.bench_run import BenchRun, Load
from pontil.launcher.tools.bench.questions import fixed
from pontil.launcher.tools.bench.stream_client import BenchTarget

PROXY = re.compile(r"proxy(:\d+)?")
READY = re.compile(r"ready on (http\S+) after ([\d.]+) s")
# Seconds that a launch may take to end when it is told to.
ENDS_WITHIN = 60.0
# The longest silence of a stream.
SILENCE_WITHIN = 300.0
# Streams at once, their requests, and the tokens of their answers, in the two loads that are measured: one of many
# requests, and one of many events. Each prompt has so many tokens, of ids that every vocabulary has.
MANY_REQUESTS, MANY_EVENTS = (4, 64, 4), (8, 16, 64)
PROMPT, VOCABULARY = 32, 250
# Lines of a launch's log that say why it failed.
LAST_LINES = 5


@dataclass(frozen=True, slots=True)
class ProfiledLaunch:
    """A launch that serves at `url`, and took so many seconds to start."""

    url: str
    start: float
    process: "subprocess.Popen[str]"

    def proxy_seconds(self) -> float:
        """Return the processor time of its proxies so far."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return sum(processor_seconds(one) for one in children if PROXY.fullmatch(name_of(one)))


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
class ProxyTimes:
    """Milliseconds of a proxy for a request, and for an event of a stream; seconds of the start of its launch."""

    request: float
    event: float
    start: float


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


def proxy_times(launch: ProfiledLaunch, model: str) -> ProxyTimes:
    """Ask a launch that nobody else uses. Raises LaunchError."""
    target = BenchTarget(launch.url, model)
    seconds_of(launch, target, (1, 1, 1))
    few, many = seconds_of(launch, target, MANY_REQUESTS), seconds_of(launch, target, MANY_EVENTS)
    request, event = solved((MANY_REQUESTS, few), (MANY_EVENTS, many))
    return ProxyTimes(round(1e3 * request, 4), round(1e3 * event, 4), launch.start)


def solved(*loads: tuple[tuple[int, int, int], float]) -> tuple[float, float]:
    """Return the seconds of a request and of an event, from those of two loads."""
    ((_, few, short), first), ((_, many, long), second) = loads
    event = max(0.0, (second / many - first / few) / (long - short))
    return max(0.0, first / few - short * event), event


def seconds_of(launch: ProfiledLaunch, target: BenchTarget, load: tuple[int, int, int]) -> float:
    """Return the proxy's processor time for a load. Raises LaunchError."""
    streams, requests, tokens = load
    before, questions = launch.proxy_seconds(), fixed(PROMPT, tokens, VOCABULARY, seed=tokens)
    made = asyncio.run(BenchRun(target, questions, requests, SILENCE_WITHIN).run(Load(concurrency=streams)))
    if made.failures:
        raise LaunchError(f"a request to the measured launch failed: {made.failures[0]}")
    return launch.proxy_seconds() - before


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
