# SPDX-License-Identifier: Apache-2.0
"""A worker process from start to end."""

import logging
import signal

from pontil.gpu_ops.collectives.communicator import CollectiveError
from pontil.gpu_ops.device_mark import DeviceLate
from pontil.runtime.command_pipe import CommandPipe
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.errors import RankLost
from pontil.runtime.foundation.entry_points import entry_point
from pontil.runtime.foundation.garbage import leave_to_requests
from pontil.runtime.reporting import Reporter
from pontil.runtime.worker.embed.assembly import assemble_embedder
from pontil.runtime.worker.embed.worker import ROLES, make_embedding_worker
from pontil.runtime.worker.follower import FollowerStart
from pontil.runtime.worker.generate.worker import make_worker
from pontil.runtime.worker.process.loop import WorkerLoop
from pontil.runtime.worker.start.assembly import assemble

# The role of workers that compute a stage without tokens.
NODE = "node"


def run_worker(config: WorkerConfig, report: Reporter, commands: int | None = None) -> None:
    """Load, register, and serve until SIGTERM. Commands come over the pipe `commands`. Raises PontilError for what a
    user can correct."""
    try:
        serve(make_process(config, report, commands))
    except CollectiveError as error:
        raise RankLost(f"{config.name} lost a rank: {error}") from error
    except DeviceLate as error:
        raise RankLost(f"{config.name} lost its device: {error}") from error


def make_process(config: WorkerConfig, report: Reporter, commands: int | None) -> WorkerLoop:
    """Make what this process is: a worker with the model that its role needs, or a follower of one."""
    if config.rank > 0:
        return FollowerStart(config, report).loop()
    pipe = None if commands is None else CommandPipe(commands, logging.getLogger("pontil.worker"))
    if config.role in ROLES:
        return make_embedding_worker(config, assemble_embedder(config, report), report, pipe)
    if config.role == NODE:
        # Its libraries are an extra, and no other worker loads them.
        node: WorkerLoop = entry_point("node-worker")(config, report, pipe)
        return node
    return make_worker(config, assemble(config, report), report, pipe)


def serve(process: WorkerLoop) -> None:
    signal.signal(signal.SIGTERM, process.stop)
    signal.signal(signal.SIGINT, process.stop)
    leave_to_requests()
    try:
        process.run()
    finally:
        process.close()
