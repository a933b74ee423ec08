# SPDX-License-Identifier: Apache-2.0
"""Every architecture through the CPU's kernels: the results of transformers, for every cut of the prompt and every
batch (C16)."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import kernels
import pytest
import torch
from architectures import NAMES, ROUND_SIZES, SIZES, VOCAB, hugging_model, read_model
from company import TOKENS, alone_in_company_and_again, handed_over
from effort import by_default
from tiny import check_free, drain, rig, sequence
from transformers import PreTrainedModel

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.runtime.engine.sequences.batch import Batch, Span
from pontil.runtime.engine.tiles.rows import plan_of
from pontil.runtime.errors import ModelError
from pontil.runtime.models.model import Model

PROMPT = torch.randint(0, VOCAB, (333,), generator=torch.Generator().manual_seed(3)).tolist()
# Every kind of attention, of cells and of experts. By default each architecture computes the logits of transformers;
# these do so in company too.
DIFFERENT = ("llama", "qwen3_moe-dense", "gemma3_text", "gpt_oss", "deepseek_v3")
CUTS = [[1] * 333, [1, 332], [64, 1, 15, 16, 17, 220], [256, 77]]


@dataclass(frozen=True)
class KernelPair:
    hugging: PreTrainedModel
    path: Path
    library: KernelLibrary

    def model(self, dtype: torch.dtype) -> Model:
        return read_model(self.path, dtype, kernels=self.library)


@pytest.fixture(scope="module")
def library() -> KernelLibrary:
    return kernels.opened()


@pytest.fixture(scope="module", params=NAMES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, library: KernelLibrary
) -> Iterator[KernelPair]:
    path = tmp_path_factory.mktemp(request.param)
    hugging = hugging_model(request.param, ROUND_SIZES)
    hugging.save_pretrained(path)
    yield KernelPair(hugging, path, library)


def logits_in_cuts(model: Model, cuts: list[int]) -> torch.Tensor:
    ours = rig(model)
    one = sequence("a", PROMPT)
    ours.scheduler.add(one)
    ours.scheduler.admit()
    start, rows = 0, []
    for count in cuts:
        ours.scheduler.memory.grow(one, start + count)
        for tile in Batch((Span(one, start, count),)).mixed_tiles():
            rows.append(
                ours.runner.tiles.project(ours.runner.tiles.forward(plan_of(tile, [*range(tile.rows)], [], [])))
            )
        start += count
    return torch.cat(rows)


def test_logits_equal_those_of_transformers_in_any_cutting(pair: KernelPair) -> None:
    with torch.inference_mode():
        expected = pair.hugging(torch.tensor([PROMPT])).logits[0]
        model = pair.model(torch.float32)
        whole = logits_in_cuts(model, [len(PROMPT)])
        torch.testing.assert_close(whole, expected, atol=5e-4, rtol=1e-4)
        for cuts in CUTS:
            assert torch.equal(logits_in_cuts(model, cuts), whole)


@pytest.mark.parametrize(
    ("pair", "dtype"),
    by_default({(name, torch.bfloat16) for name in DIFFERENT}, product(NAMES, (torch.float32, torch.bfloat16))),
    indirect=["pair"],
    ids=str,
)
def test_company_chunks_replay_and_a_handoff_change_nothing(pair: KernelPair, dtype: torch.dtype) -> None:
    model = pair.model(dtype)
    expected = alone_in_company_and_again(model, PROMPT)
    assert handed_over(model, PROMPT[:150], TOKENS) == expected


@pytest.mark.parametrize(
    ("pair", "length", "drafts"),
    by_default(
        {("llama", 10, 0), *((name, 64, 4) for name in (*DIFFERENT, "bamba"))}, product(NAMES, (10, 64, 90), (0, 4))
    ),
    indirect=["pair"],
)
def test_the_next_turn_finds_the_answer_as_it_was_decoded(pair: KernelPair, length: int, drafts: int) -> None:  # B3
    model = pair.model(torch.bfloat16)
    ours = rig(model, drafts=drafts)
    first = sequence("a", PROMPT[:length], 45, temperature=1.1, seed=4)
    ours.engine.add(first)
    drain(ours.engine)
    assert not ours.scheduler.has_spare_work
    talk = first.prompt + first.output
    turns = [sequence("b", talk + PROMPT[200:220], 20), sequence("b", talk + PROMPT[200:220], 20)]
    ours.engine.add(turns[0])
    cold = rig(model, caching=False).engine
    cold.add(turns[1])
    assert drain(ours.engine)["b"] == drain(cold)["b"]
    # An end with states is found at its very position.
    size = 1 if ours.scheduler.prefix.whole else 16
    assert turns[0].history.cached == (len(talk) - 1) // size * size
    check_free(ours)


def test_a_model_that_does_not_fit_is_refused(tmp_path: Path, library: KernelLibrary) -> None:
    hugging_model("llama", SIZES).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="--kernels torch"):
        read_model(tmp_path, kernels=library)
