# SPDX-License-Identifier: Apache-2.0
"""A model converted to GGUF computes the same as the original."""

from pathlib import Path

import pytest
import torch
from architectures import COMMON_NAMES, VOCAB, hugging_model, read_model
from converter import convert
from tiny import rig, sequence

from pontil.runtime.engine.sequences.batch import Batch, Span
from pontil.runtime.engine.tiles.rows import plan_of
from pontil.runtime.models.model import Model

PROMPT = torch.randint(0, VOCAB, (150,), generator=torch.Generator().manual_seed(4)).tolist()
# A GGUF file cannot state these: which layers of a Qwen2 have windows, and which of a mixture have no experts.
SAYABLE = [name for name in COMMON_NAMES if name not in ("qwen2-windows", "qwen3_moe-dense")]


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
    hugging.save_pretrained(tmp_path / "directory")
    original = read_model(tmp_path / "directory")
    converted = read_model(convert(hugging, tmp_path / "model.gguf"))
    torch.testing.assert_close(logits(converted), logits(original), atol=2e-5, rtol=0)
