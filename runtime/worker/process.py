# SPDX-License-Identifier: Apache-2.0
"""A worker process from start to end."""

import logging
import signal

from pontil.gpu_ops.collectives.communicator import CollectiveError
from pontil.runtime.command_pipe import CommandPipe
from pontil.runtime.config import WorkerConfig
from pontil.runtime.errors import RankLost
from pontil.runtime.reporting import Reporter
from pontil.runtime.worker.assembly import assemble
from pontil.runtime.worker.follower import Follower
from pontil.runtime.worker.worker import Worker


def run_worker(config: WorkerConfig, report: Reporter, commands: int | None = None) -> None:
    """Load, register, and serve until SIGTERM. Commands come over the pipe `commands`. Raises PontilError for what a
    user can correct."""
    try:
        serve(make_process(config, report, commands))
    except CollectiveError as error:
        raise RankLost(f"{config.name} lost a rank: {error}") from error


def make_process(config: WorkerConfig, report: Reporter, commands: int | None) -> Worker | Follower:
    """Make what this process is: the worker, or one of its followers."""
    if config.rank > 0:
        return Follower(config, report)
    machine = assemble(config, report)
    pipe = None if commands is None else CommandPipe(commands, logging.getLogger("pontil.worker"))
    return Worker(config, machine, report, pipe)


def serve(process: Worker | Follower) -> None:
    signal.signal(signal.SIGTERM, process.stop)
    signal.signal(signal.SIGINT, process.stop)
    try:
        process.run()
    finally:
        process.close()
