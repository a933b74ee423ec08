# SPDX-License-Identifier: Apache-2.0
"""The weights of embedders and later stages count in what a launch takes."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from architectures import hugging_model
from mxfp4_directory import EVEN, write_mxfp4
from safetensors.torch import load_file, save_file
from tiny_gguf import write_tiny_gguf
from tiny_llama import write_tiny_llama

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.loaders.config import read_config
from pontil.runtime.loaders.facts.layout import tensor_shapes
from pontil.runtime.loaders.facts.weight_forms import HEAD
from pontil.runtime.probe import footprint, other_workers
from pontil.runtime.probe.footprint import (
    IMPORTED_BYTES,
    SERVING_BYTES,
    MemoryDemand,
    check_memory,
    check_room,
    memory_lines,
)
from pontil.runtime.probe.host_memory import FreeMemory
from pontil.runtime.probe.other_workers import (
    OtherWorker,
    embedder_bytes,
    other_footprints,
    other_lines,
    stage_bytes,
)

DEMAND = MemoryDemand("bfloat16", "auto", "none", None, 1 << 20, 16, [["cpu"]], {})
PROCESS = IMPORTED_BYTES + SERVING_BYTES


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    write_tiny_llama(tmp_path / "tiny", dtype="bfloat16")
    return tmp_path / "tiny"


def room_of(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(footprint, "host_room", lambda: FreeMemory(size))


def test_an_embedder_has_all_but_the_head_in_float32(tiny: Path, tmp_path: Path) -> None:
    stored = load_file(tiny / "model.safetensors")
    numbers = sum(one.numel() for name, one in stored.items() if name != "lm_head.weight")
    assert embedder_bytes(tiny) == 4 * numbers
    assert embedder_bytes(write_tiny_gguf(tmp_path / "x.gguf", tiny, read_config(tiny))) == 4 * numbers


def test_a_stage_has_the_tensors_or_the_folder_of_its_name_or_a_model_of_its_own(tmp_path: Path) -> None:
    save_file(
        {"talker.x": torch.zeros(10, 3, dtype=torch.bfloat16), "talker.y": torch.zeros(5), "talk.z": torch.zeros(7)},
        tmp_path / "model.safetensors",
    )
    assert stage_bytes(tmp_path, "talker", own=False) == 60 + 20
    assert stage_bytes(tmp_path, "snac", own=False) == 0
    (tmp_path / "snac" / "more").mkdir(parents=True)
    for place, size in (("snac/a.bin", 11), ("snac/more/b.bin", 4), ("snac/a.h5", 14), ("voice.onnx", 9)):
        (tmp_path / place).write_bytes(bytes(size))
    assert stage_bytes(tmp_path, "snac", own=False) == 15
    assert stage_bytes(tmp_path / "voice.onnx", "speaker", own=True) == 9
    assert stage_bytes(tmp_path / "snac", "speaker", own=True) == 15
    assert stage_bytes(tmp_path / "voice.onnx", "speaker", own=False) == 0


def test_a_launch_is_refused_for_what_its_embedders_need_besides(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = embedder_bytes(tiny)
    beside = [OtherWorker("e", None, True, ["cpu"]), OtherWorker("e", None, True, ["cpu"])]
    others = other_footprints(beside, {"e": tiny})
    alone = footprint.together(footprint.footprints(tiny, DEMAND)["cpu"])
    room_of(monkeypatch, alone + 2 * (weights + PROCESS))
    check_memory(tiny, DEMAND, None, others)
    assert memory_lines(tiny, DEMAND, others)[-1].startswith("all 3 at once")
    (line,) = other_lines(beside, {"e": tiny})
    assert line.startswith("each embedder: ") and "KV" not in line and line.endswith("of the process, or more")
    room_of(monkeypatch, alone + 2 * (weights + PROCESS) - 1)
    check_memory(tiny, DEMAND)
    with pytest.raises(ModelError, match="too large: 3 workers"):
        check_memory(tiny, DEMAND, None, others)


def test_a_launch_of_embedders_alone_is_refused_by_their_model_s_name(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = write_large(tmp_path / "large")
    weights, one = embedder_bytes(large), OtherWorker("e", None, True, ["cpu"])
    pair = other_footprints([one, one], {"e": large})
    room_of(monkeypatch, 2 * (weights + PROCESS))
    check_room(pair, {})
    room_of(monkeypatch, 2 * (weights + PROCESS) - 1)
    with pytest.raises(ModelError, match=r"the model large is too large: 2 workers .*choose a smaller model$"):
        check_room(pair, {})
    # So is one beside a model that would fit.
    with pytest.raises(ModelError, match=r"the model large is too large: 3 workers .*choose a smaller model$"):
        check_memory(tiny, DEMAND, None, pair)
    there = other_footprints([replace(one, devices=["cuda:0"])], {"e": large})
    check_room(there, {"cuda:0": weights})
    check_room(there, {})
    with pytest.raises(ModelError, match=r"the model large .* and cuda:0 has .* left: choose a smaller model$"):
        check_room(there, {"cuda:0": weights - 1})


def write_large(folder: Path) -> Path:
    write_tiny_llama(folder, dtype="bfloat16", hidden_size=256, intermediate_size=1024)
    return folder


def test_a_quantized_embedder_takes_what_its_numbers_become(tmp_path: Path) -> None:
    write_mxfp4(hugging_model("gpt_oss", EVEN), tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    numbers = sum(math.prod(shape) for name, shape in tensor_shapes(checkpoint.config).items() if name != HEAD)
    stored = sum(one.nbytes for name, one in checkpoint.tensors() if name.endswith(("_blocks", "_scales")))
    experts = 2 * stored * 16 // 17
    assert embedder_bytes(tmp_path, False) == 4 * (numbers - experts) + stored
    assert embedder_bytes(tmp_path) == 2 * (numbers - experts) + experts * 5 // 8
    assert embedder_bytes(tmp_path, quantization="none") == 4 * numbers


def test_embedders_share_packed_weights_and_count_on_their_device(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_workers, "LEAST_BYTES", 0)
    weights, one = embedder_bytes(tiny), OtherWorker("e", None, True, ["cpu"])
    pair = other_footprints([one, one], {"e": tiny})["cpu"]
    assert footprint.together(pair) == weights + 2 * PROCESS
    apart = other_footprints([replace(one, has_kernels=False)] * 2, {"e": tiny})["cpu"]
    assert footprint.together(apart) == 2 * (weights + PROCESS)
    there = other_footprints([replace(one, devices=["cuda:1"])], {"e": tiny})
    (held,) = there["cuda:1"]
    assert (held.weights, held.total) == (weights, weights)
    demand = replace(DEMAND, gpu_memory={"cuda:1": weights - 1})
    with pytest.raises(ModelError, match="cuda:1 has"):
        check_memory(tiny, demand, None, there)
    assert other_footprints([one], {}) == {}
