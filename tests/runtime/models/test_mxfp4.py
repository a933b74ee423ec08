# SPDX-License-Identifier: Apache-2.0
"""Experts of GPT-OSS in floats of 4 bits: the results of their exact values, in the memory of their bytes."""

import json
from pathlib import Path

import pytest
import torch
from architectures import SIZES, VOCAB, hugging_model, read_model
from company import TOKENS, alone_in_company_and_again, handed_over
from safetensors.torch import load_file, save_file
from tiny import rig, sequence
from torch import Tensor
from transformers import PreTrainedModel
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from pontil.gpu_ops.products.scaled_weights import FP4_VALUES, Fp4Weights, ScaledLinear
from pontil.runtime.engine.sequences.batch import Batch, Span
from pontil.runtime.engine.tiles.rows import plan_of
from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.loaders.facts.shards import WHOLE

PROMPT = torch.randint(0, VOCAB, (333,), generator=torch.Generator().manual_seed(3)).tolist()
PART = 100
# Inputs are multiples of 32.
EVEN = SIZES | {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}


def packed(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round [..., inputs] to floats of 4 bits: their bytes [..., groups, 16] and exponents [..., groups]."""
    groups = weight.unflatten(-1, (-1, 32))
    exponents = groups.abs().amax(-1).log2().floor() - 2
    scaled = groups / torch.exp2(exponents).unsqueeze(-1)
    numbers = (scaled.unsqueeze(-1) - torch.tensor(FP4_VALUES)).abs().argmin(-1).to(torch.uint8)
    pairs = numbers.unflatten(-1, (16, 2))
    return pairs[..., 0] | pairs[..., 1] << 4, (exponents + 127).to(torch.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mxfp4")


@pytest.fixture(scope="module")
def hugging(folder: Path) -> PreTrainedModel:
    """A model whose experts have the values that transformers reads from the folder's bytes."""
    model = hugging_model("gpt_oss", EVEN)
    model.save_pretrained(folder)
    tensors = load_file(folder / WHOLE)
    parameters = dict(model.named_parameters())
    for name in [one for one in tensors if one.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        blocks, scales = packed(tensors.pop(name).transpose(1, 2))
        tensors |= {f"{name}_blocks": blocks.contiguous(), f"{name}_scales": scales}
        with torch.no_grad():
            parameters[name].copy_(convert_moe_packed_tensors(blocks, scales.clone(), dtype=torch.float32))
    save_file(tensors, folder / WHOLE, metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}))
    return model


def test_logits_equal_those_of_transformers(hugging: PreTrainedModel, folder: Path) -> None:
    ours = rig(read_model(folder))
    one = sequence("a", PROMPT[:PART])
    ours.scheduler.add(one)
    ours.scheduler.admit()
    ours.scheduler.memory.grow(one, PART)
    (tile,) = Batch((Span(one, 0, PART),)).tiles()
    logits = ours.runner.tiles.project(ours.runner.tiles.forward(plan_of(tile, [*range(PART)], [], [])))
    with torch.inference_mode():
        expected = hugging(torch.tensor([PROMPT[:PART]])).logits[0]
    assert (logits - expected).abs().max() < 1e-4


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
