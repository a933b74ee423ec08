# SPDX-License-Identifier: Apache-2.0
"""Random kills at random times: nothing is left of a launch, and what survives serves (G4)."""

import os
import random
import shutil
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from leftovers import Leftovers
from served import START_TIMEOUT, Served, launched, wait_for
from tiny_llama import write_tiny_llama

from pontil.gpu_ops.kernels.compile.build import COMPILERS

# The first kills three times while a pair starts, the second lets one worker serve. Even ones start by exec, as a
# user's launch does, where a process may die between its fork and its program; odd ones are forked.
SEEDS = [*range(2), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 30))]
SHAPES = (("--role", "mixed"), ("--share-devices", "--prefill", "cpu:0", "--decode", "cpu:0"))
# With so many kills, a worker would exhaust the default restart attempts.
OPTIONS = ("--kv-cache-memory", "8MiB", "--restart-attempts", "1000", "--restart-delay", "0.1")
DEATHS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT, signal.SIGSTOP)
ENDS = (
    (signal.SIGKILL,),
    (signal.SIGTERM,),
    (signal.SIGINT,),
    (signal.SIGTERM, signal.SIGTERM),
    (signal.SIGTERM, signal.SIGKILL),
    (signal.SIGSTOP, signal.SIGKILL),
)
# Seconds, forked and by exec. A start takes about as long as two of these pauses: half of the kills come before any
# process is ready.
LONGEST_PAUSES = (0.6, 2.5)
AFTER_THE_END = 20.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_llama(folder)
    return str(folder)


def compiles(process: Path) -> bool:
    """Return whether the process is the one that compiles: GCC's driver starts another, clang compiles itself."""
    with suppress(OSError):
        return (process / "comm").read_text().startswith(("cc1plus", "clang"))
    return False


def strike(served: Served, drawn: random.Random) -> str:
    """Kill or stop a child, or all at once, if there are any; return a description."""
    number, one_of_them, all_of_them = drawn.choice(DEATHS), drawn.random(), drawn.random() < 0.2
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(served.process.pid).children()
        victims = children if all_of_them else children[int(one_of_them * len(children)) :][:1]
        for victim in victims:
            victim.send_signal(number)
        return f"{number.name} to {len(victims)} of {len(children)}"
    return "nobody to kill"


def end(served: Served, signals: tuple[signal.Signals, ...], drawn: random.Random) -> None:
    pause = threading.Event()
    for number in signals:
        with suppress(ProcessLookupError):
            os.kill(served.process.pid, number)
        pause.wait(drawn.uniform(0, 0.3))
    served.process.wait(60)


def answer(served: Served) -> Any:
    """Return an answer, or None where the launch says that it cannot now: a process may have been killed since it was
    ready."""
    reply = served.request("POST", "/v1/completions", {"model": "tiny", "prompt": "on the", "max_tokens": 3})
    said = reply.json()
    assert reply.status == 200 or (reply.status == 503 and int(reply.header("retry-after") or 0) > 0), said
    return said if reply.status == 200 else None


def check_it_serves(served: Served, leftovers: Leftovers) -> None:
    """Check that the launch serves and that the oracle sees it. A launch may instead have ended, as after a kill of the
    process that looks for the model."""
    wait_for(lambda: served.process.poll() is not None or served.is_ready(), START_TIMEOUT, "readiness or the end")
    if served.process.poll() is None:
        reply = wait_for(lambda: answer(served), START_TIMEOUT, "an answer")
        assert reply["usage"]["completion_tokens"] <= 3
        assert served.metric("pontil_worker_malformed_frames_total") == 0
        leftovers.note()
        seen = {one.split()[0] for one in leftovers.left(served.port)}
        assert seen >= {"process", "Port", "socket", "memory"}


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_left_whatever_is_killed(seed: int, model: str, tmp_path: Path) -> None:  # G4
    drawn, pause, story = random.Random(seed), threading.Event(), list[str]()
    by_exec = seed % 2 == 0
    longest = LONGEST_PAUSES[by_exec]
    leftovers = Leftovers(tmp_path / "run")
    arguments = (*drawn.choice(SHAPES), *OPTIONS, "--model", model)
    with launched(tmp_path, *arguments, ready=False, variables=leftovers.variables, by_exec=by_exec) as served:
        for _ in range(drawn.randrange(4)):
            pause.wait(drawn.uniform(0, longest))
            story.append(strike(served, drawn))
        # A process stopped during its start is waited for up to a minute.
        if drawn.random() < 0.5 and not any("SIGSTOP" in one for one in story):
            check_it_serves(served, leftovers)
        else:
            pause.wait(drawn.uniform(0, longest))
        leftovers.note()
        alive = served.process.poll() is None
        beside = leftovers.after_the_next_start() if leftovers.base.exists() else []
        assert not alive or not beside or beside == [str(served.process.pid)], "a live launch keeps its directory"
        signals = drawn.choice(ENDS)
        story.append(f"{[number.name for number in signals]} to the launcher")
        end(served, signals, drawn)
        assert leftovers.at_last(served.port, AFTER_THE_END) == [], story
        said = served.output.read_text()
    assert leftovers.after_the_next_start() == []
    assert not any(line.startswith("Traceback") for line in said.splitlines()), "the launcher itself never breaks"


def test_nothing_is_left_of_a_start_that_fails(model: str, tmp_path: Path) -> None:  # G4
    """The proxy starts and the worker cannot: its weights are invalid."""
    leftovers = Leftovers(tmp_path / "run")
    (Path(shutil.copytree(model, tmp_path / "broken")) / "model.safetensors").write_bytes(b"no weights")
    arguments = ("--role", "mixed", *OPTIONS, "--model", str(tmp_path / "broken"))
    with launched(tmp_path, *arguments, ready=False, variables=leftovers.variables) as served:
        assert served.process.wait(START_TIMEOUT) == 1
        assert leftovers.at_last(served.port, AFTER_THE_END) == []
        assert "mixed:0 could not start" in served.output.read_text()
    assert {path.name for path in leftovers.base.iterdir()} == {".lock"}, "it has removed its directory itself"


def test_a_compiler_goes_with_its_launch(model: str, tmp_path: Path) -> None:  # G4
    """The workers compile kernels on the very first start, in processes of their own."""
    if not any(map(shutil.which, COMPILERS)):
        pytest.skip("no C++ compiler is installed")
    leftovers = Leftovers(tmp_path / "run")
    variables = leftovers.variables | {"PONTIL_CACHE": str(tmp_path / "cache")}
    with launched(tmp_path, "--role", "mixed", *OPTIONS, "--model", model, ready=False, variables=variables) as served:
        wait_for(lambda: any(map(compiles, leftovers.marked())), START_TIMEOUT, "a compiler at work")
        served.process.kill()
        served.process.wait(60)
        assert leftovers.at_last(served.port, AFTER_THE_END) == []
