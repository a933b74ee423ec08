# SPDX-License-Identifier: Apache-2.0
"""Replacement of what the world stands for, in this process: before anything of pontil is imported, since modules keep
what they import. The process can do nothing else afterwards."""

import os
import random
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq
from disks import WorldDisks, install_disks
from virtual_time import HERE, SeededWorld
from wire_keys import KeyedContext, examine

from pontil.runtime.wire.simulated import install as simulated
from pontil.runtime.wire.simulated.install import replace_in_os


@dataclass(frozen=True, slots=True)
class RealCalls:
    """The calls that were there before."""

    cpu: Any = time.process_time
    clock: Any = time.perf_counter
    open: Any = os.open


REAL = RealCalls()


def enter(world: SeededWorld, folder: Path = Path("/nonexistent")) -> None:
    """Make a world, whose disks are below a folder, the one that all stand-ins refer to."""
    simulated.enter(world)
    WorldDisks(world, folder)
    world.network.examine = examine
    random.seed(f"{world.seed}/global")


def install() -> None:
    """Replace clock, randomness, zmq, process ids and descriptors that belong to a process."""
    simulated.install()
    install_descriptors()
    install_disks()
    untyped: Any = zmq
    untyped.Context = KeyedContext
    # For what asks for the time while it is imported.
    enter(SeededWorld(0))


def install_descriptors() -> None:
    """Give each process its pid, and close its files when it ends: their locks are what others wait for. Python closes
    those that it has the descriptor of in a file object, by no call that is seen here."""
    own, close, fdopen = os.getpid(), os.close, os.fdopen
    os.getpid = lambda: own if HERE.world.current is None else HERE.world.current.pid

    def opened(path: Any, flags: int, mode: int = 0o777, **given: Any) -> int:
        made: int = REAL.open(path, flags, mode, **given)
        if HERE.world.current is not None:
            HERE.world.current.descriptors.add(made)
        return made

    def disowned(descriptor: int) -> int:
        for process in HERE.world.processes:
            process.descriptors.discard(descriptor)
        return descriptor

    replace_in_os(
        open=opened,
        close=lambda descriptor: close(disowned(descriptor)),
        fdopen=lambda descriptor, *given, **named: fdopen(disowned(descriptor), *given, **named),
    )


def show_failures() -> None:
    """Have the trace show where a contained exception came from."""
    from pontil.runtime.threads import ThreadFailures

    note = ThreadFailures.note

    def shown(self: ThreadFailures, name: str, error: BaseException) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        HERE.world.note("failure", name, repr(error), *(f"{Path(one.filename).name}:{one.lineno}" for one in frames))
        HERE.world.failures.append(f"{name}: {error!r} at {Path(frames[-1].filename).name}:{frames[-1].lineno}")
        note(self, name, error)

    untyped: Any = ThreadFailures
    untyped.note = shown
