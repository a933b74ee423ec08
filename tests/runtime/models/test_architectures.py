# SPDX-License-Identifier: Apache-2.0
"""Every architecture computes the results of transformers, however its prompt is cut, and is batch-invariant.

Prompts are longer than any sliding window of the tiny models, and than one chunk of keys.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from architectures import NAMES, VOCAB, hugging_model, read_model
from company import alone_in_company_and_again, handed_over
from effort import examples
from tiny import drain, rig, sequence
from transformers import PreTrainedModel

from pontil.runtime.engine.batch import Batch, Span
from pontil.runtime.engine.tile_rows import plan_of
from pontil.runtime.models.model import Model

PROMPT = torch.randint(0, VOCAB, (333,), generator=torch.Generator().manual_seed(3)).tolist()
CUTS = [[333], [1, 332], [64, 1, 15, 16, 17, 220], [256, 77]]
# The tokens that follow the second and the third cross every sliding window of the models: 37, 64 and 65.
LENGTHS = (1, 36, 64, 200)
COUNT = examples(32, 64)


@dataclass(frozen=True)
class ModelPair:
    """The same weights in our model and in transformers'."""

    hugging: PreTrainedModel
    ours: Model
    path: Path


@pytest.fixture(scope="module", params=NAMES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelPair]:
    path = tmp_path_factory.mktemp(request.param)
    hugging = hugging_model(request.param)
    hugging.save_pretrained(path)
    yield ModelPair(hugging, read_model(path), path)


def logits_in_cuts(model: Model, cuts: list[int]) -> torch.Tensor:
    ours = rig(model)
    one = sequence("a", PROMPT)
    ours.scheduler.add(one)
    ours.scheduler.admit()
    start, rows = 0, []
    for count in cuts:
        ours.scheduler.memory.grow(one, start + count)
        for tile in Batch((Span(one, start, count),)).tiles():
            rows.append(
                ours.runner.tiles.project(ours.runner.tiles.forward(plan_of(tile, [*range(tile.rows)], [], [])))
            )
        start += count
    return torch.cat(rows)


def test_logits_equal_those_of_transformers_in_any_cutting(pair: ModelPair) -> None:
    with torch.inference_mode():
        expected = pair.hugging(torch.tensor([PROMPT])).logits[0]
    whole = logits_in_cuts(pair.ours, CUTS[0])
    assert (whole - expected).abs().max() < 1e-4
    for cuts in CUTS[1:]:
        assert torch.equal(logits_in_cuts(pair.ours, cuts), whole)


def generated(hugging: PreTrainedModel, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    found = hugging.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=COUNT,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    tokens: list[int] = found[0, len(prompt) :].tolist()
    return tokens


def test_greedy_tokens_equal_those_of_transformers_here_and_after_a_handoff(pair: ModelPair) -> None:
    expected = {str(length): generated(pair.hugging, PROMPT[:length]) for length in LENGTHS}
    ours = rig(pair.ours).engine
    for length in LENGTHS:
        ours.add(sequence(str(length), PROMPT[:length], COUNT))
    assert drain(ours) == expected
    assert handed_over(pair.ours, PROMPT[:200], COUNT) == expected["200"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_company_chunks_and_replay_change_nothing(pair: ModelPair, dtype: torch.dtype) -> None:
    model = read_model(pair.path, dtype)
    alone_in_company_and_again(model, PROMPT)
