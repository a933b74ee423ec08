# SPDX-License-Identifier: Apache-2.0
"""Weights in blocks of 8 bits: the results of their exact values, in the memory of their bytes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import VOCAB, hugging_model, read_model
from company import TOKENS, alone_in_company_and_again, handed_over
from fp8_directory import BLOCK, write_fp8
from safetensors.torch import load_file, save_file
from tiny import rig, sequence
from transformers import PreTrainedModel

from pontil.gpu_ops.products.scaled_weights import OUTPUTS, ScaledLinear, ScaledWeights
from pontil.runtime.engine.sequences.batch import Batch, Span
from pontil.runtime.engine.tiles.rows import plan_of
from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.loaders.config import read_config
from pontil.runtime.loaders.facts.shards import WHOLE

PROMPT = torch.randint(0, VOCAB, (333,), generator=torch.Generator().manual_seed(3)).tolist()
PART = 150


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fp8")


@pytest.fixture(scope="module")
def hugging(folder: Path) -> PreTrainedModel:
    """A model whose weights are those of the folder."""
    model = hugging_model("deepseek_v3")
    write_fp8(model, folder)
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


def test_company_chunks_replay_and_a_handoff_change_nothing(hugging: PreTrainedModel, folder: Path) -> None:
    model = read_model(folder, torch.bfloat16)
    expected = alone_in_company_and_again(model, PROMPT)
    assert handed_over(model, PROMPT[:PART], TOKENS) == expected


def test_weights_stay_in_8_bits(hugging: PreTrainedModel, folder: Path) -> None:
    model = read_model(folder, torch.bfloat16)
    stored = [one for one in model.linears if isinstance(one, ScaledLinear)]
    weights = [one.weights for one in stored]
    assert all(isinstance(one, ScaledWeights) and one.numbers.dtype == torch.float8_e4m3fn for one in weights)
    # The routers are not in 8 bits.
    assert len(model.linears) - len(stored) == 2


def test_a_product_in_parts_is_that_of_the_whole_weight() -> None:
    generator = torch.Generator().manual_seed(1)
    rows, inputs = OUTPUTS + 70, 3 * BLOCK[1] - 5
    numbers = torch.randn(rows, inputs, generator=generator).to(torch.float8_e4m3fn)
    scales = torch.rand(-(-rows // BLOCK[0]), 3, generator=generator)
    weights = ScaledWeights.of_blocks(numbers, scales, BLOCK)
    by_hand = torch.tensor(
        [
            [float(numbers[i, j]) * float(scales[i // BLOCK[0], j // BLOCK[1]]) for j in range(inputs)]
            for i in (0, rows - 1)
        ]
    )
    assert torch.equal(weights.dense(torch.float32)[[0, -1]], by_hand)
    x, bias = torch.randn(5, inputs, generator=generator), torch.randn(rows, generator=generator)
    product = ScaledLinear(weights, torch.float32, torch.device("cpu"), bias)
    torch.testing.assert_close(product(x), x @ weights.dense(torch.float32).T + bias)
    own = weights.rows(range(40, 90))
    assert torch.equal(own.dense(torch.float32), weights.dense(torch.float32)[40:90])


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"quant_method": "bitsandbytes", "bits": 4}, "reads awq or gptq or compressed-tensors or fp8 or mxfp4 there"),
        ({"quant_method": "fp8", "weight_block_size": None, "fmt": "e5m2"}, "reads e4m3 with 'fp8' there"),
        ({"quant_method": "fp8", "weight_block_size": [128, 0]}, r"two positive numbers as weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": "128"}, r"two positive numbers as weight_block_size"),
    ],
)
def test_other_forms_are_refused_in_one_sentence(
    hugging: PreTrainedModel, folder: Path, tmp_path: Path, form: dict[str, Any], says: str
) -> None:
    data = json.loads((folder / "config.json").read_text()) | {"quantization_config": form}
    (tmp_path / "config.json").write_text(json.dumps(data))
    with pytest.raises(ModelError, match=says):
        read_config(tmp_path)


def test_a_weight_without_its_scales_is_refused(hugging: PreTrainedModel, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    tensors = load_file(folder / WHOLE)
    del tensors["model.layers.1.self_attn.o_proj.weight_scale_inv"]
    save_file(tensors, tmp_path / WHOLE, metadata={"format": "pt"})
    with pytest.raises(
        ModelError,
        match=r"stores the tensor model\.layers\.1\.self_attn\.o_proj\.weight as F8_E4M3: this version reads",
    ):
        open_checkpoint(tmp_path)
