# SPDX-License-Identifier: Apache-2.0
"""The other ranks of an engine in this process, each in a process of its own."""

import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pontil.launcher.child.parent_death import die_with_parent

if TYPE_CHECKING:
    from pontil.runtime.config.worker_config import WorkerConfig


class FollowerProcesses:
    """Processes that end with this one. They are forked before it computes anything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pids: list[int] = []

    def start(self, config: "WorkerConfig") -> "WorkerConfig":
        """Start the followers of a worker whose ranks divide its cores; return its configuration as rank 0."""
        return self.run([replace(config, rank=rank, cores=cores_of(config, rank)) for rank in range(config.ranks)])

    def run(self, ranks: "Sequence[WorkerConfig]") -> "WorkerConfig":
        """Start all ranks but the first, in the place of any before; return the first one's configuration."""
        self.end()
        driver, *followers = (replace(one, rank_endpoint=f"ipc://{self.folder}/ranks") for one in ranks)
        ours = os.getpid()
        for follower in followers:
            pid = os.fork()
            if pid == 0:
                follow(follower, ours)
            self.pids.append(pid)
        return driver

    def end(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.pids.clear()


@contextmanager
def rank_processes() -> Iterator[FollowerProcesses]:
    with tempfile.TemporaryDirectory(prefix="pontil-ranks-") as folder:
        made = FollowerProcesses(Path(folder))
        try:
            yield made
        finally:
            made.end()


def cores_of(config: "WorkerConfig", rank: int) -> tuple[int, ...]:
    """Return a rank's part of the cores; where there are fewer than ranks, they share one."""
    return config.cores[rank :: config.ranks] or config.cores[:1]


def follow(config: "WorkerConfig", parent: int) -> NoReturn:
    """Be a rank until the parent ends this process."""
    try:
        die_with_parent(parent)
        os.sched_setaffinity(0, config.cores)
        from pontil.runtime.reporting import NoReports
        from pontil.runtime.worker.entry import run_worker

        run_worker(config, NoReports())
    finally:
        os._exit(1)
