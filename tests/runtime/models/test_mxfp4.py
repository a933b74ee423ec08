# SPDX-License-Identifier: Apache-2.0
"""Experts of GPT-OSS in floats of 4 bits: the results of their exact values, in the memory of their bytes."""

from pathlib import Path

import pytest
import torch
from architectures import VOCAB, hugging_model, read_model
from company import TOKENS, alone_in_company_and_again, handed_over
from kernels import opened
from mxfp4_directory import EVEN, write_mxfp4
from safetensors.torch import load_file, save_file
from tiny import rig, sequence
from transformers import PreTrainedModel

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.weights.quantized import QuantizedWeights
from pontil.gpu_ops.products.scaled_weights import FP4_VALUES, Fp4Weights, ScaledLinear
from pontil.runtime.engine.sequences.batch import Batch, Span
from pontil.runtime.engine.tiles.rows import plan_of
from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.loaders.facts.layout import tensor_shapes
from pontil.runtime.loaders.facts.shards import WHOLE
from pontil.runtime.loaders.facts.weight_forms import FP4, mxfp4_form
from pontil.runtime.loaders.hf.weight_parts import read_mxfp4
from pontil.runtime.loaders.level_formats import level_formats
from pontil.runtime.models.families.registry import build_model
from pontil.runtime.models.layers.fused_block import kernels_fit
from pontil.runtime.models.model import Model
from pontil.runtime.models.weights import Packing, Weights
from pontil.runtime.probe.weight_memory import weight_memory

PROMPT = torch.randint(0, VOCAB, (333,), generator=torch.Generator().manual_seed(3)).tolist()
PART = 100


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mxfp4")


@pytest.fixture(scope="module")
def hugging(folder: Path) -> PreTrainedModel:
    """A model whose experts have the values that transformers reads from the folder's bytes."""
    model = hugging_model("gpt_oss", EVEN)
    write_mxfp4(model, folder)
    return model


def logits(model: Model) -> torch.Tensor:
    ours = rig(model)
    one = sequence("a", PROMPT[:PART])
    ours.scheduler.add(one)
    ours.scheduler.admit()
    ours.scheduler.memory.grow(one, PART)
    (tile,) = Batch((Span(one, 0, PART),)).tiles()
    return ours.runner.tiles.project(ours.runner.tiles.forward(plan_of(tile, [*range(PART)], [], [])))


def by_kernels(folder: Path, library: KernelLibrary) -> Model:
    """The model with its experts as they are in its files."""
    checkpoint = open_checkpoint(folder)
    assert checkpoint.has_levels and kernels_fit(checkpoint.config, torch.bfloat16)
    tensors = checkpoint.levels(torch.bfloat16)
    return build_model(checkpoint.config, Weights(tensors, torch.device("cpu"), torch.bfloat16, Packing.of(library)))


def test_logits_equal_those_of_transformers(hugging: PreTrainedModel, folder: Path) -> None:
    found = logits(read_model(folder))
    with torch.inference_mode():
        expected = hugging(torch.tensor([PROMPT[:PART]])).logits[0]
    assert (found - expected).abs().max() < 1e-4
    # With --quantization none kernels multiply the same numbers in the model's type.
    assert (logits(read_model(folder, kernels=opened())) - expected).abs().max() < 1e-4


def test_kernels_multiply_floats_of_4_bits_and_round_no_more_than_bfloat16_does(
    hugging: PreTrainedModel, folder: Path
) -> None:
    library = opened()
    with torch.inference_mode():
        expected = hugging(torch.tensor([PROMPT[:PART]])).logits[0]
    found, rounded = logits(by_kernels(folder, library)), logits(read_model(folder, torch.bfloat16, kernels=library))
    errors = [((one - expected).square().mean().sqrt() / expected.std()).item() for one in (found, rounded)]
    assert 0 < errors[0] < 1.5 * errors[1] + 1e-3


def test_levels_are_the_values_that_transformers_reads(hugging: PreTrainedModel, folder: Path) -> None:
    checkpoint, theirs = open_checkpoint(folder), dict(hugging.named_parameters())
    levels = dict(checkpoint.levels(torch.float32))
    counted = [one.removesuffix(".offsets") for one in levels if one.endswith(".offsets")]
    assert len(counted) == 2 * 5 * 3 and sorted(counted) == sorted(level_formats(folder, checkpoint.config))
    for one in counted:
        found = QuantizedWeights(*(levels[f"{one}.{part}"] for part in ("numbers", "scales", "offsets")))
        layer, expert, product = (one.split(".")[place] for place in (2, 5, 6))
        name = "down_proj" if product == "down_proj" else "gate_up_proj"
        whole = theirs[f"model.layers.{layer}.mlp.experts.{name}"][int(expert)].T
        part = {"down_proj": whole, "gate_proj": whole[0::2], "up_proj": whole[1::2]}[product]
        found = QuantizedWeights(found.numbers, found.scales, found.offsets, None, levels[f"{one}.table"])
        assert torch.equal(found.dense(), part), one
    assert sorted({name.partition(".weight.")[0] for name in levels} - set(tensor_shapes(checkpoint.config))) == sorted(
        one.removesuffix(".weight") for one in counted
    )


@pytest.mark.parametrize("has_kernels", [True, False])
def test_a_plan_counts_the_bytes_of_4_bits(hugging: PreTrainedModel, folder: Path, has_kernels: bool) -> None:
    config = open_checkpoint(folder).config
    experts = 2 * 5 * 3 * 64 * 96
    unpacked = weight_memory(folder, config, "none", 2).held
    ours = weight_memory(folder, config, "gguf" if has_kernels else "none", 2, has_kernels=has_kernels)
    # A scale and an offset of 16 bits for each group in the kernels' form, 8 bits in the file's.
    assert unpacked - ours.held == experts * 2 - experts * (20 if has_kernels else 17) // 32
    on_device = weight_memory(folder, config, "none", 2, on_host=False)
    assert has_kernels or on_device.held == ours.held


@pytest.mark.long  # weights in 8 bits have the same product, and company by default
def test_company_chunks_replay_and_a_handoff_change_nothing(hugging: PreTrainedModel, folder: Path) -> None:
    model = read_model(folder, torch.bfloat16)
    expected = alone_in_company_and_again(model, PROMPT)
    assert handed_over(model, PROMPT[:150], TOKENS) == expected


def test_weights_stay_in_4_bits(hugging: PreTrainedModel, folder: Path) -> None:
    model = read_model(folder, torch.bfloat16)
    stored = [one.weights for one in model.linears if isinstance(one, ScaledLinear)]
    assert len(stored) == 2 * 5 * 2 and all(isinstance(one, Fp4Weights) for one in stored)
    numbers = sum(one.shape.numel() for one in stored)
    assert (
        sum(one.numbers.nbytes + one.scales.nbytes for one in stored if isinstance(one, Fp4Weights))
        == numbers * 17 // 32
    )


def test_every_value_and_the_ends_of_the_exponents() -> None:
    numbers = torch.arange(16, dtype=torch.uint8)
    bytes_of = (numbers[0::2] | numbers[1::2] << 4).repeat(2).view(1, 1, 16).repeat(3, 1, 1)
    scales = torch.tensor([[127], [0], [254]], dtype=torch.uint8)
    values = torch.tensor(FP4_VALUES).repeat(2)
    weights = Fp4Weights(bytes_of, scales).dense(torch.float32)
    places, steps, _ = read_mxfp4(mxfp4_form((3, 32)), {"weight_blocks": bytes_of, "weight_scales": scales})
    assert torch.equal(torch.tensor(FP4, dtype=torch.float32)[places.int()] * steps, weights)
    assert torch.equal(weights[0], values) and torch.equal(weights[1], values * 2.0**-127)
    assert torch.equal(weights[2], values * 2.0**127)


def test_a_file_without_the_exponents_is_refused(hugging: PreTrainedModel, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    tensors = load_file(folder / WHOLE)
    del tensors["model.layers.1.mlp.experts.down_proj_scales"]
    save_file(tensors, tmp_path / WHOLE, metadata={"format": "pt"})
    with pytest.raises(
        ModelError, match=r"lacks the tensors model\.layers\.1\.mlp\.experts\.0\.down_proj\.weight_scales"
    ):
        open_checkpoint(tmp_path)
