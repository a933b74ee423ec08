# SPDX-License-Identifier: Apache-2.0
"""Processor times of launches in a profile, and their ends. Real launches are in test_plan.py."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from process_state import has_ended

from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.tools.planner import profiled_launch
from pontil.launcher.tools.planner.profiled_launch import LaunchMeter
from pontil.runtime.planner.profile_loads import LOADS, ProfileLoad

# A process that has a launch: one that says it is ready. Both wait for the end of their input, which the test holds.
SERVES = "import sys; print('ready on http://[::1]:1 after 1.0 s', file=sys.stderr, flush=True); sys.stdin.read()"
MEASURES = f"""
import sys
sys.path.insert(0, sys.argv[1])
import app
from pontil.launcher.tools.planner import profiled_launch
profiled_launch.child_command = lambda name: [sys.executable, "-c", {SERVES!r}]
with profiled_launch.launched([]) as launch:
    print(launch.process.pid, flush=True)
    sys.stdin.read()
"""
ROOT = Path(__file__).resolve().parents[4]
REQUEST, EVENT, TOKEN = 2e-3, 1e-4, 1e-5


class KnownLaunches:
    """Launches whose proxies, workers and clients take known times: in the second one twice as long."""

    def __init__(self) -> None:
        self.words, self.cores, self.fails = list[Sequence[str]](), list[set[int]](), False

    @contextmanager
    def launched(self, words: Sequence[str]) -> Iterator[Any]:
        self.words.append(words)
        self.cores.append(os.sched_getaffinity(0))
        yield SimpleNamespace(url="http://127.0.0.1:1", start=2.0 * len(self.words), process=None)

    def seconds_of(self, launch: Any, target: Any, load: ProfileLoad) -> tuple[float, float, float]:
        if self.fails:
            raise LaunchError("it failed.")
        proxy = load.requests * (REQUEST + EVENT * load.tokens + TOKEN * load.prompt)
        return tuple(len(self.words) * one for one in (proxy, 10 * proxy, proxy / 2))  # type: ignore[return-value]

    async def restart_of(self, launch: Any) -> float:
        return float(launch.start) / 4


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> KnownLaunches:
    made = KnownLaunches()
    monkeypatch.setattr(profiled_launch, "launched", made.launched)
    monkeypatch.setattr(profiled_launch, "seconds_of", made.seconds_of)
    monkeypatch.setattr(profiled_launch, "restart_of", made.restart_of)
    return made


def meter(**differs: Any) -> LaunchMeter:
    worker: Any = SimpleNamespace(**({"device": "cpu", "cores": (0,), "ranks": 1} | differs))
    return LaunchMeter(["--mixed", "cpu:0"], "m", worker)


def test_times_are_the_mean_of_all_launches(known: KnownLaunches) -> None:
    launches = meter()
    launches.measure()
    launches.measure()
    result = launches.result()
    host = result.host
    assert host.start_seconds == 3.0 and host.restart_seconds == host.back_after == 0.75
    assert (host.proxy_request, host.proxy_event, host.proxy_token) == pytest.approx(
        tuple(1.5e3 * one for one in (REQUEST, EVENT, TOKEN))
    )
    assert host.client_request == pytest.approx(0.75e3 * REQUEST)
    expected = [15 * one.requests * (REQUEST + EVENT * one.tokens + TOKEN * one.prompt) for one in LOADS]
    assert result.worker == pytest.approx(expected)


@pytest.mark.parametrize("differs", [{"device": "cuda:0"}, {"cores": (0, 1)}, {"ranks": 2}])
def test_a_worker_that_is_more_than_a_core_has_no_time_of_its_turns(known: KnownLaunches, differs: Any) -> None:
    launches = meter(**differs)
    launches.measure(3)
    assert launches.result().worker is None and len(known.words) == 1


def test_a_launch_has_all_cores_though_this_process_computes_on_one(known: KnownLaunches) -> None:
    launches, before = meter(), os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        known.fails = True
        with pytest.raises(LaunchError, match=r"it failed\."):
            launches.measure()
        assert known.cores == [before] and os.sched_getaffinity(0) == {min(before)}
    finally:
        os.sched_setaffinity(0, before)


def test_a_killed_worker_is_back_when_another_process_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table has the dead one for a while, and the next one before it serves."""
    states = [("READY", 0), ("BACKOFF", 0), ("STARTING", 1), ("READY", 1), ("READY", 1)]
    left, killed = iter(states), list[re.Pattern[str]]()

    def table(url: str, path: str) -> dict[str, Any]:
        state, restarts = next(left)
        worker = {"name": "mixed:0", "state": state, "restarts": restarts}
        return {"processes": [{"name": "proxy", "state": "READY", "restarts": 1}, worker]}

    monkeypatch.setattr(profiled_launch, "fetch", table)
    launch: Any = SimpleNamespace(url="http://127.0.0.1:1", kill=killed.append)
    assert asyncio.run(profiled_launch.restart_of(launch)) > 0
    assert killed == [profiled_launch.WORKER] and list(left) == states[4:]
    monkeypatch.setattr(profiled_launch, "BACK_WITHIN", 0.0)
    with pytest.raises(LaunchError, match=r"was killed, and not back within 0 s\."):
        asyncio.run(profiled_launch.restart_of(launch))


def test_a_launch_ends_with_a_measurement_that_is_told_to_end() -> None:
    command = [sys.executable, "-c", MEASURES, str(ROOT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        launch = psutil.Process(int(process.stdout.readline()))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
        assert has_ended(launch), "its input is still open"
