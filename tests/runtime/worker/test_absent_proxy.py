# SPDX-License-Identifier: Apache-2.0
"""A worker that only waits for its proxy says so, and is given the time (launcher/child/health.py)."""

from pathlib import Path

from kernels import CACHE
from tiny_bert import write_tiny_bert
from workers import Silent, open_worker

from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.worker.embed.assembly import assemble_embedder
from pontil.runtime.worker.embed.worker import make_embedding_worker
from pontil.runtime.worker.process.loop import WorkerLoop


class WaitListener(Silent):
    """A reporter that remembers what it was told of waiting."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, bool]] = []

    def progress(self, text: str, *, waits: bool = False) -> None:
        self.heard.append((text, waits))


def heard_without_a_proxy(worker: WorkerLoop) -> list[tuple[str, bool]]:
    worker.report = listener = WaitListener()
    worker.stop()
    worker.run()
    worker.close()
    return listener.heard


def test_a_worker_that_generates(model: Path, tmp_path: Path) -> None:
    worker = open_worker(model, tmp_path, "mixed:0", "mixed")
    assert heard_without_a_proxy(worker) == [("registering with the proxy", True)]


def test_a_worker_that_embeds(tmp_path: Path) -> None:
    config = WorkerConfig(
        "embed:0", "embed", "cpu", (0,), str(write_tiny_bert(tmp_path / "bert")), "vectors", f"ipc://{tmp_path}/c", "",
        cache_dir=str(CACHE),
    )  # fmt: skip
    worker = make_embedding_worker(config, assemble_embedder(config, Silent()), Silent())
    assert heard_without_a_proxy(worker) == [("registering with the proxy", True)]
