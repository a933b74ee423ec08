# SPDX-License-Identifier: Apache-2.0
"""A model converted to GGUF computes the same as the original."""

from pathlib import Path

import gguf
import pytest
import torch
from architectures import HYBRIDS, NAMES, SIZES, VOCAB, hugging_model, read_model
from converter import convert
from tiny import rig, sequence

from pontil.gpu_ops.kernels.weights.quantized import QuantizedWeights
from pontil.runtime.engine.sequences.batch import Batch, Span
from pontil.runtime.engine.tiles.rows import plan_of
from pontil.runtime.loaders.facts.weight_forms import EMBEDDING
from pontil.runtime.loaders.gguf.file import GgufCheckpoint
from pontil.runtime.loaders.gguf.packed_formats import LATENTS, gguf_formats
from pontil.runtime.models.model import Model

PROMPT = torch.randint(0, VOCAB, (150,), generator=torch.Generator().manual_seed(4)).tolist()
# A GGUF file cannot state these: which layers of a Qwen2 have windows, and which of a mixture have no experts.
SAYABLE = [name for name in NAMES if name not in ("qwen2-windows", "qwen3_moe-dense", *HYBRIDS)]


def logits(model: Model) -> torch.Tensor:
    ours = rig(model)
    one = sequence("a", PROMPT)
    ours.scheduler.add(one)
    ours.scheduler.admit()
    ours.scheduler.memory.grow(one, len(PROMPT))
    (tile,) = Batch((Span(one, 0, len(PROMPT)),)).tiles()
    return ours.runner.tiles.project(ours.runner.tiles.forward(plan_of(tile, [*range(len(PROMPT))], [], [])))


@pytest.mark.parametrize("name", SAYABLE)
def test_logits_equal_those_of_the_model_that_was_converted(tmp_path: Path, name: str) -> None:
    hugging = hugging_model(name)
    if name == "gemma3_text":
        # GGUF has no key for it: llama.cpp takes the size of a head.
        hugging.config.query_pre_attn_scalar = hugging.config.head_dim
    if name.startswith("deepseek"):
        # A file states one of the two, and means both.
        hugging.config.rope_parameters["mscale"] = hugging.config.rope_parameters["mscale_all_dim"]
    if name == "gpt_oss":
        # A file states no limit: it is the published model's.
        hugging.config.swiglu_limit = 7.0
    hugging.save_pretrained(tmp_path / "directory")
    original = read_model(tmp_path / "directory")
    converted = read_model(convert(hugging, tmp_path / "model.gguf"))
    torch.testing.assert_close(logits(converted), logits(original), atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3"])
def test_products_of_latents_may_be_in_two_tensors(tmp_path: Path, name: str) -> None:
    hugging = hugging_model(name)
    whole = read_model(convert(hugging, tmp_path / "whole.gguf"))
    divided = read_model(convert(hugging, tmp_path / "divided.gguf", divided_latents=True))
    assert divided.config == whole.config
    assert torch.equal(logits(divided), logits(whole))


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss", "glm4", "glm4_moe", "deepseek_v3"])
def test_numbers_of_4_bits_are_those_of_the_weights_that_they_stand_for(tmp_path: Path, name: str) -> None:
    """Experts lie one behind the other in a tensor, gates before ups."""
    sizes = SIZES | {"hidden_size": 64, "intermediate_size": 96}
    sizes |= {"moe_intermediate_size": 32} if name in ("glm4_moe", "deepseek_v3") else {}
    path = convert(hugging_model(name, sizes), tmp_path / "model.gguf", kind=gguf.GGMLQuantizationType.MXFP4)
    checkpoint = GgufCheckpoint.open(path)
    tensors, levels = dict(checkpoint.tensors(torch.float32)), dict(checkpoint.levels(torch.float32))
    counted = [one.removesuffix(".scales") for one in levels if one.endswith(".scales")]
    formats = gguf_formats(path, checkpoint.config)
    # The numbers of latents are made floats as they are read.
    multiplied = {one for one in counted if LATENTS not in one}
    assert multiplied == {one for one in formats if one != EMBEDDING or checkpoint.config.tie_word_embeddings}
    assert any(".up_proj." in one for one in counted) and any(".down_proj." in one for one in counted)
    for one in counted:
        numbers, scales, offsets = (levels[f"{one}.{part}"] for part in ("numbers", "scales", "offsets"))
        found = QuantizedWeights(numbers, scales, offsets, None, levels.get(f"{one}.table"))
        assert torch.equal(found.dense(), tensors[one]), one
