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
from effort import by_default, examples
from tiny import drain, rig, sequence
from transformers import PreTrainedModel

from pontil.runtime.engine.sequences.batch import Batch, Span
from pontil.runtime.engine.tiles.rows import plan_of
from pontil.runtime.models.model import Model

PROMPT = torch.randint(0, VOCAB, (333,), generator=torch.Generator().manual_seed(3)).tolist()
CUTS = [[333], [1, 332], [64, 1, 15, 16, 17, 220], [256, 77]]
# The tokens that follow the second and the third cross every sliding window of the models: 37, 64 and 65.
LENGTHS = (1, 36, 64, 200)
COUNT = examples(16, 64)
# Position after position takes torch seconds; the kernels compute them by default (test_kernels.py).
BY_KERNELS = {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "granitemoehybrid", "granitemoehybrid-dense"}
# By default each architecture computes the logits of transformers, in any cutting. Each kind of attention, of cells, of
# experts and of their choice is in one of these, which compute in company too, and in both types with --long.
IN_FLOAT32, IN_BFLOAT16 = {"glm4_moe"}, {"qwen3_moe-dense", "gemma3_text", "gpt_oss", "deepseek_v3"}
DECODED = {"llama-llama3", "gemma3_text", "gpt_oss", "deepseek_v3"}


@dataclass(frozen=True)
class ModelPair:
    """The same weights in our model and in transformers'."""

    hugging: PreTrainedModel
    ours: Model
    path: Path


@pytest.fixture(scope="module", params=by_default(set(NAMES) - BY_KERNELS, NAMES))
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


def chosen(hugging: PreTrainedModel, prompt: list[int], answer: list[int]) -> list[int]:
    """Return the greedy token of transformers at each place of an answer, given what is before it. It is the answer
    itself only if transformers would have generated that answer."""
    with torch.inference_mode():
        logits = hugging(torch.tensor([prompt + answer[:-1]])).logits[0, len(prompt) - 1 :]
    tokens: list[int] = logits.argmax(-1).tolist()
    return tokens


@pytest.mark.parametrize("pair", by_default(DECODED, NAMES), indirect=True)
def test_greedy_tokens_equal_those_of_transformers_here_and_after_a_handoff(pair: ModelPair) -> None:
    ours = rig(pair.ours).engine
    for length in LENGTHS:
        ours.add(sequence(str(length), PROMPT[:length], COUNT))
    answers = drain(ours)
    for length in LENGTHS:
        answer = answers[str(length)]
        assert len(answer) == COUNT and chosen(pair.hugging, PROMPT[:length], answer) == answer
    assert handed_over(pair.ours, PROMPT[:200], COUNT) == answers["200"]


@pytest.mark.parametrize("pair", by_default(IN_FLOAT32, NAMES), indirect=True)
def test_company_chunks_and_replay_change_nothing(pair: ModelPair) -> None:
    alone_in_company_and_again(pair.ours, PROMPT)


@pytest.mark.parametrize("pair", by_default(IN_BFLOAT16, NAMES), indirect=True)
def test_company_chunks_and_replay_change_nothing_in_bfloat16(pair: ModelPair) -> None:
    alone_in_company_and_again(read_model(pair.path, torch.bfloat16), PROMPT)
