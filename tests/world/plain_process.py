# SPDX-License-Identifier: Apache-2.0
"""The process of a worker that makes no tokens: the real loop, over arithmetic that hashes."""

import logging

from copying import EventConnector
from engine_process import TinyModel
from hash_vectors import embedder_of
from worker_process import WorkerProcess

from pontil.runtime.command_pipe import CommandPipe
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.reporting import Reporter
from pontil.runtime.worker.embed.worker import EmbeddingWorker
from pontil.runtime.worker.process.plain_worker import PlainWorker


class PlainProcess(WorkerProcess):
    """The process of a worker that embeds texts."""

    worker: PlainWorker | None = None

    def begin(self, config: WorkerConfig, model: TinyModel, report: Reporter, commands: int) -> None:
        """Make the worker, as `runtime/worker/entry.py` does, and take the first turn."""
        self.report = report
        with self.inside():
            pipe = CommandPipe(commands, logging.getLogger("pontil.worker"))
            self.worker = EmbeddingWorker(config, embedder_of(model.config.vocab_size, self.cost), report, pipe)
            self.first_turn()
        self.notify()

    @property
    def connectors(self) -> list[EventConnector]:
        return []

    @property
    def next_turn(self) -> float:
        assert self.worker is not None
        return self.world.now() + self.worker.patience

    @property
    def left(self) -> dict[str, int]:
        assert self.worker is not None
        return {"tasks": self.worker.counts[0]}

    @property
    def has_requests(self) -> bool:
        return self.worker is not None and not self.worker.is_idle
