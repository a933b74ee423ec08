# SPDX-License-Identifier: Apache-2.0
"""A model converted to GGUF computes the same as the original."""

from pathlib import Path

import pytest
import torch
from architectures import NAMES, VOCAB, hugging_model, read_model
from converter import convert
from tiny import rig, sequence

from pontil.runtime.engine.sequences.batch import Batch, Span
from pontil.runtime.engine.tiles.rows import plan_of
from pontil.runtime.models.model import Model

PROMPT = torch.randint(0, VOCAB, (150,), generator=torch.Generator().manual_seed(4)).tolist()
# A GGUF file cannot state these: which layers of a Qwen2 have windows, and which of a mixture have no experts.
SAYABLE = [name for name in NAMES if name not in ("qwen2-windows", "qwen3_moe-dense")]


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
