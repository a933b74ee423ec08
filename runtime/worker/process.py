# SPDX-License-Identifier: Apache-2.0
"""A worker process from start to end."""

import logging
import signal

from pontil.runtime.command_pipe import CommandPipe
from pontil.runtime.config import WorkerConfig
from pontil.runtime.reporting import Reporter
from pontil.runtime.worker.assembly import assemble
from pontil.runtime.worker.embedding_assembly import assemble_embedder
from pontil.runtime.worker.embedding_worker import ROLE, EmbeddingWorker
from pontil.runtime.worker.worker import Worker


def run_worker(config: WorkerConfig, report: Reporter, commands: int | None = None) -> None:
    """Load, register, and serve until SIGTERM. Commands come over the pipe `commands`. Raises PontilError for what a
    user can correct."""
    pipe = None if commands is None else CommandPipe(commands, logging.getLogger("pontil.worker"))
    worker = make_worker(config, report, pipe)
    signal.signal(signal.SIGTERM, worker.stop)
    signal.signal(signal.SIGINT, worker.stop)
    try:
        worker.run()
    finally:
        worker.close()


def make_worker(config: WorkerConfig, report: Reporter, pipe: CommandPipe | None) -> Worker | EmbeddingWorker:
    """Load the model that the worker's role needs."""
    if config.role == ROLE:
        return EmbeddingWorker(config, assemble_embedder(config, report), report, pipe)
    return Worker(config, assemble(config, report), report, pipe)
