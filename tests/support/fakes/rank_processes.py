# SPDX-License-Identifier: Apache-2.0
"""Processes that are the ranks of a worker: each calls the functions that a test names, all of them at once."""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
import rank_calls

# Seconds that an answer may take on a machine that does other work too.
PATIENCE = 120.0


class RankProcesses:
    """`count` processes, rank r being the r-th. Their state is a dictionary, the first argument of every function."""

    def __init__(self, count: int) -> None:
        self.context = get_context("forkserver")
        self.context.set_forkserver_preload(["app", "torch", "pytest", "rank_calls", "rank_models"])
        with pytest.MonkeyPatch.context() as patch:
            # That process would know only the folder in which it was started.
            patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
            forkserver.ensure_running()
        self.ends: list[Connection] = []
        self.processes: list[BaseProcess] = []
        for rank in range(count):
            end, process = self.started(rank)
            self.ends.append(end)
            self.processes.append(process)

    def started(self, rank: int) -> tuple[Connection, BaseProcess]:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=serve, args=(theirs, rank), daemon=True)
        process.start()
        theirs.close()
        return ours, process

    def revive(self) -> None:
        """Start those anew that have ended."""
        for rank, process in enumerate(self.processes):
            if not process.is_alive():
                self.ends[rank].close()
                self.ends[rank], self.processes[rank] = self.started(rank)

    def kill(self, rank: int) -> None:
        self.processes[rank].kill()
        self.processes[rank].join(PATIENCE)

    def close(self) -> None:
        for rank in range(len(self.processes)):
            self.kill(rank)

    def send(self, rank: int, function: Callable[..., Any], *arguments: Any) -> None:
        self.ends[rank].send((function, arguments))

    def answer(self, rank: int) -> Any:
        """The function's result, or the exception's class and text as a string."""
        assert self.ends[rank].poll(PATIENCE), f"rank {rank} does not answer"
        return self.ends[rank].recv()

    def call(self, ranks: Sequence[int], function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Have all these ranks call the function; return what they answer."""
        for rank in ranks:
            self.send(rank, function, *arguments)
        return [self.answer(rank) for rank in ranks]

    def share(self, ranks: int, size: int = 4 << 20, deadline: float = 60.0) -> dict[str, Any]:
        """Have the first processes join a new group over shared memory of that size; return its descriptor."""
        (descriptor,) = self.call([0], rank_calls.create, ranks, size, deadline)
        assert isinstance(descriptor, dict), descriptor
        for rank in range(1, ranks):
            assert self.call([rank], rank_calls.join, descriptor, rank) == [None]
        return descriptor

    def signal(self, rank: int, number: signal.Signals) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)


def serve(end: Connection, rank: int) -> None:
    from processor import hide_faster_sets

    import app  # noqa: F401

    hide_faster_sets()
    state: dict[str, Any] = {"rank": rank}
    while True:
        try:
            function, arguments = end.recv()
        except EOFError:
            return
        try:
            end.send(function(state, *arguments))
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            end.send(told if type(error).__name__ == "CollectiveError" else told + traceback.format_exc())
