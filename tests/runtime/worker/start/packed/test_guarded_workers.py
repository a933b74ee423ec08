# SPDX-License-Identifier: Apache-2.0
"""Workers that guard the packed weights which they map, whatever they compute."""

import os
from pathlib import Path

import pytest
from kernels import CACHE
from packed_loading import packed_files_of, wait_for_leases
from tiny_bert import write_tiny_bert
from tiny_llama import write_tiny_llama
from workers import Silent, open_worker

from pontil.gpu_ops.kernels.weights.shelf import verify
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.worker.embed.assembly import assemble_embedder
from pontil.runtime.worker.embed.worker import make_embedding_worker


@pytest.fixture
def compiled(cache: Path) -> Path:
    """A cache directory with the kernels, and without packed weights."""
    cache.mkdir()
    (cache / "kernels").symlink_to(CACHE / "kernels")
    return cache


def cut_off(cache: Path, count: int) -> list[Path]:
    """Cut off the packed files, so many, that a worker guards. It maps others then, which are whole."""
    files = packed_files_of(cache)
    assert len(files) == count
    for path in files:
        os.truncate(path, 0)
        verify(path)
        wait_for_leases(path, 1)
    return files


def test_a_worker_guards_its_model_and_the_one_that_guesses_for_it(model: Path, compiled: Path, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "other", seed=4, num_layers=1, dtype="bfloat16")
    worker = open_worker(
        model, tmp_path, "mixed:0", "mixed", cache_dir=str(compiled), speculative_model=str(tmp_path / "other"),
        speculative_tokens=6,
    )  # fmt: skip
    files = cut_off(compiled, 2)
    worker.close()
    for path in files:
        wait_for_leases(path, 0)


def test_a_worker_that_embeds_guards_its_encoder(compiled: Path, tmp_path: Path) -> None:
    config = WorkerConfig(
        "embed:0", "embed", "cpu", (0,), str(write_tiny_bert(tmp_path / "bert")), "vectors",
        f"ipc://{tmp_path}/control", "", cache_dir=str(compiled),
    )  # fmt: skip
    worker = make_embedding_worker(config, assemble_embedder(config, Silent()), Silent())
    (path,) = cut_off(compiled, 1)
    worker.close()
    wait_for_leases(path, 0)
