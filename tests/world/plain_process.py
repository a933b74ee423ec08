# SPDX-License-Identifier: Apache-2.0
"""The process of a worker that makes no tokens: the real loop, over arithmetic that hashes."""

import logging

from copying import EventConnector
from engine_process import TinyModel
from ghost_blocks import GhostRecords
from hash_stages import node_of
from hash_vectors import embedder_of, scorer_of
from stream_memory import connectors_of, left_in
from virtual_time import SeededWorld
from worker_process import WorkerProcess, step_seconds

from pontil.runtime.command_pipe import CommandPipe
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.reporting import Reporter
from pontil.runtime.stages.graph.catalog import graph_named
from pontil.runtime.stages.worker.node_worker import NodeWorker, make_node_worker
from pontil.runtime.worker.embed.assembly import RERANK
from pontil.runtime.worker.embed.worker import ROLES, EmbeddingWorker, make_embedding_worker
from pontil.runtime.worker.process.loop import WorkerLoop


class PlainProcess(WorkerProcess):
    """The process of a worker that embeds or scores texts, or computes a node of a model of several stages."""

    worker: EmbeddingWorker | NodeWorker | None = None

    def __init__(self, world: SeededWorld, name: str, ghosts: GhostRecords) -> None:
        super().__init__(world, name)
        self.ghosts = ghosts

    def begin(self, config: WorkerConfig, model: TinyModel, report: Reporter, commands: int) -> None:
        """Make the worker, as `runtime/worker/entry.py` does, and take the first turn."""
        self.report = report
        with self.inside():
            pipe = CommandPipe(commands, logging.getLogger("pontil.worker"))
            if config.role in ROLES:
                made_of = scorer_of if config.role == RERANK else embedder_of
                embedder = made_of(model.config.vocab_size, self.cost)
                self.loop = make_embedding_worker(config, embedder, report, pipe)
            else:
                self.loop = self.make_node(config, report, pipe)
            made = self.loop.workload
            assert isinstance(made, EmbeddingWorker | NodeWorker)
            self.worker = made
            if isinstance(made, NodeWorker):
                self.ghosts.add(made.ports.memory.storage, None, self)
            self.loop.begin()
        self.notify()

    def make_node(self, config: WorkerConfig, report: Reporter, pipe: CommandPipe) -> WorkerLoop:
        graph = graph_named(str(config.graph))
        assert graph is not None
        node = node_of(graph, str(config.node), self.seconds_of)
        return make_node_worker(config, graph, node, report, pipe)

    def seconds_of(self, rows: int) -> float:
        """Return the seconds of a piece of work. A node has no answer to a want of memory but its end."""
        return self.slowness * step_seconds(rows, 0)

    @property
    def connectors(self) -> list[EventConnector]:
        return connectors_of(self.worker.ports) if isinstance(self.worker, NodeWorker) else []

    @property
    def left(self) -> dict[str, int]:
        assert self.worker is not None
        if isinstance(self.worker, NodeWorker):
            return {"tasks": len(self.worker.tasks), **left_in(self.worker.ports)}
        return {"tasks": len(self.worker.queue)}

    @property
    def has_requests(self) -> bool:
        return self.worker is not None and not self.worker.outlook().is_idle
