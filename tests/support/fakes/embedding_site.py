# SPDX-License-Identifier: Apache-2.0
"""A real worker that embeds or scores texts, and a scripted proxy."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kernels import CACHE
from workers import DEADLINE, ScriptedProxy, Silent

from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.wire.messages import Embed
from pontil.runtime.worker.embed.assembly import assemble_embedder
from pontil.runtime.worker.embed.worker import EmbeddingWorker
from pontil.runtime.worker.links.worker_sockets import WorkerSockets
from pontil.runtime.worker.process.loop import WorkerLoop

Vector = Any


def embedding_config(model: Path, run: Path, **settings: Any) -> WorkerConfig:
    return WorkerConfig(**{
        "name": "embed:0", "role": "embed", "device": "cpu", "cores": (0,), "model": str(model),
        "served_model_name": "vectors", "control": f"ipc://{run}/control", "peer_endpoint": "",
        "cache_dir": str(CACHE), **settings,
    })  # fmt: skip


class EmbeddingSite:
    """A worker and a proxy, stepped in turns in one thread."""

    def __init__(self, model: Path, run: Path, **settings: Any) -> None:
        config = embedding_config(model, run, **settings)
        self.proxy = ScriptedProxy(run)
        self.worker = EmbeddingWorker(WorkerSockets(config), assemble_embedder(config, Silent()))
        self.loop = WorkerLoop(self.worker, Silent())
        self.loop.tick(0.0)
        self.until(lambda: self.worker.link.proxy is not None)
        self.proxy.underway.count(self.worker.link.sockets)

    def until(self, condition: Any) -> None:
        deadline = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            self.worker.sockets.poller.wake()
            self.loop.turn()
            self.proxy.hear_all()

    def want_times(self) -> None:
        """Have the worker tell times, by a Welcome after those that may still be on their way."""
        self.proxy.wants_times = True
        self.proxy.welcome(self.proxy.hellos["embed:0"])
        self.until(lambda: self.worker.link.links[0].takes_times)

    def ask(self, name: str, prompt: Sequence[int], **fields: Any) -> None:
        message = Embed("proxy", self.worker.sockets.incarnation, name, 0, list(prompt), **fields)
        assert self.proxy.server.send(message)

    def vectors(self, *names: str) -> list[Vector]:
        self.until(lambda: all(name in self.proxy.vectors for name in names))
        return [np.frombuffer(self.proxy.vectors[name].vector, "<f4") for name in names]

    def failure(self, name: str) -> Any:
        self.until(lambda: name in self.proxy.answers)
        return self.proxy.answers[name].failures[0]

    def close(self) -> None:
        self.loop.close()
        self.proxy.close()
