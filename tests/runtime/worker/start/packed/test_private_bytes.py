# SPDX-License-Identifier: Apache-2.0
"""Draft layers, embedders and the parts that make speech are in memory once a host, as models are."""

import ctypes
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kernels
import pytest
import tiny_omni
import torch
from effort import by_default
from tiny_draft_layers import write_eagle_head
from tiny_llama import write_tiny_llama
from tiny_omni import write_tiny_omni
from workers import Silent

from pontil.gpu_ops.collectives.communicator import SingleRank
from pontil.gpu_ops.kernels.weights.shelf import MappedShelf, WritingShelf
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.loaders.draft_layers import find_draft_layer
from pontil.runtime.stages.graph.catalog import QWEN3_OMNI
from pontil.runtime.stages.qwen3_omni.speech_loading import load_talker, load_talker_decoder
from pontil.runtime.stages.worker.node_assembly import make_code2wav
from pontil.runtime.worker.embed.assembly import load_decoder
from pontil.runtime.worker.start.draft_loading import load_draft_layer
from pontil.runtime.worker.start.loading import PartWeights, load
from pontil.runtime.worker.start.packed_files import files_of

CPU = torch.device("cpu")
# A model's parts are loaded by a function of a configuration.
Load = Callable[[WorkerConfig], object]


def anonymous() -> int:
    """Return the bytes of this process that no file has and no other process shares."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))


def config_of(model: Path, cache: Path, **settings: Any) -> WorkerConfig:
    return WorkerConfig(**{
        "name": "decode:0", "role": "decode", "device": "cpu", "cores": (0,), "model": str(model),
        "served_model_name": "tiny", "control": "", "peer_endpoint": "", "cache_dir": str(cache), **settings,
    })  # fmt: skip


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "kernels").symlink_to(kernels.CACHE / "kernels")
    return folder


def draft_layer(folder: Path) -> tuple[Path, Load]:
    target, head = folder / "target", folder / "head"
    write_tiny_llama(target, dtype="bfloat16", hidden_size=512, intermediate_size=4096, num_layers=1, num_heads=32)
    write_eagle_head(head, target)
    part = load(config_of(target, folder / "cache"), Silent(), lambda *given: SingleRank())
    source = find_draft_layer(target, head)
    assert source is not None
    return target, lambda config: load_draft_layer(config, source, part, Silent())


def embedder(folder: Path) -> tuple[Path, Load]:
    write_tiny_llama(folder / "model", hidden_size=512, intermediate_size=1024, num_heads=32)
    return folder / "model", lambda config: load_decoder(config, CPU, Silent())


def code2wav(folder: Path) -> tuple[Path, Load]:
    write_tiny_omni(folder / "omni")
    return folder / "omni", lambda config: make_code2wav(config, Silent())


def talker(folder: Path) -> tuple[Path, Load]:
    library = kernels.opened()
    write_tiny_omni(folder / "omni")
    decoder = load_talker_decoder(folder / "omni", CPU, torch.float32, library)

    def loaded(config: WorkerConfig) -> object:
        read = PartWeights(config, CPU, torch.float32, library, Silent()).read
        return load_talker(config.model_path, decoder, read)

    return folder / "omni", loaded


def test_parts_share_memory_of_the_launch_where_no_file_can_be_written(tmp_path: Path) -> None:
    write_tiny_omni(tmp_path / "omni")
    (tmp_path / "file").touch()
    config, library = config_of(tmp_path / "omni", tmp_path / "file" / "cache"), kernels.opened()
    decoder = load_talker_decoder(config.model_path, CPU, torch.float32, library)
    memory = [os.memfd_create("weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING) for _ in range(2)]
    kinds = []
    for _ in range(2):
        parts = PartWeights(config, CPU, torch.float32, library, Silent(), memory)
        load_talker(config.model_path, decoder, parts.read)
        kinds += [type(one) for one in parts.shelves]
    assert kinds == [WritingShelf] * 2 + [MappedShelf] * 2
    for file in memory:
        os.close(file)


@pytest.mark.parametrize("make", by_default({draft_layer}, [draft_layer, embedder, code2wav, talker]))
def test_a_second_worker_has_few_bytes_of_its_own(
    tmp_path: Path, cache: Path, make: Callable[[Path], tuple[Path, Load]], monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = {"hidden_size": 256, "intermediate_size": 1024, "decoder_dim": 256}
    for name, sizes in (("code2wav", wide), ("code_predictor", {"intermediate_size": 32768})):
        usual = getattr(tiny_omni, name)()
        monkeypatch.setattr(tiny_omni, name, lambda usual=usual, sizes=sizes: usual | sizes)
    model, loads = make(tmp_path)
    taken, kept = [], []
    for place in (tmp_path / "file" / "cache", cache, cache):
        (tmp_path / "file").touch()
        config = config_of(model, place, graph=QWEN3_OMNI.name, node="code2wav", kernels="auto")
        before = anonymous()
        kept.append(loads(config))
        taken.append(anonymous() - before)
    private, _, mapped = taken
    print(f"{make.__name__}: {private >> 10} KiB private, {mapped >> 10} KiB of one that maps")
    assert private > 8 << 20 and mapped < private / 8
    assert files_of(cache)
