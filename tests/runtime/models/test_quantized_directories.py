# SPDX-License-Identifier: Apache-2.0
"""Checkpoints whose weights are whole numbers or floats of 8 bits: the results of the weights that they stand for."""

from pathlib import Path

import pytest
import torch
from architectures import VOCAB, hugging_model, read_model
from quantized_directory import FORMS, LARGE, write_quantized
from tiny import rig, sequence

from pontil.runtime.engine.sequences.batch import Batch, Span
from pontil.runtime.engine.tiles.rows import plan_of
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.loaders.facts.layout import tensor_shapes
from pontil.runtime.models.model import Model

PROMPT = torch.randint(0, VOCAB, (70,), generator=torch.Generator().manual_seed(3)).tolist()


def logits(model: Model) -> torch.Tensor:
    ours, one = rig(model), sequence("a", PROMPT)
    ours.scheduler.add(one)
    ours.scheduler.admit()
    ours.scheduler.memory.grow(one, len(PROMPT))
    (tile,) = Batch((Span(one, 0, len(PROMPT)),)).tiles()
    return ours.runner.tiles.project(ours.runner.tiles.forward(plan_of(tile, [*range(len(PROMPT))], [], [])))


@pytest.mark.parametrize("name", FORMS)
def test_logits_equal_those_of_the_weights_that_a_file_stands_for(tmp_path: Path, name: str) -> None:
    hugging = hugging_model("llama", LARGE)
    write_quantized(hugging, tmp_path, *FORMS[name])
    checkpoint = open_checkpoint(tmp_path)
    tensors = dict(checkpoint.tensors(torch.float32))
    theirs = hugging.state_dict()
    assert sorted(tensors) == sorted(tensor_shapes(checkpoint.config))
    assert all((tensor - theirs[one]).abs().max() <= 1e-6 * theirs[one].abs().max() for one, tensor in tensors.items())
    with torch.inference_mode():
        expected = hugging(torch.tensor([PROMPT])).logits[0]
    assert (logits(read_model(tmp_path)) - expected).abs().max() < 1e-4
