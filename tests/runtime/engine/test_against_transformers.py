# SPDX-License-Identifier: Apache-2.0
"""The engine computes the results of transformers, in one piece or in many."""

import pytest
import torch
from tiny import VOCAB, build, drain, reference, rig, sequence

from pontil.runtime.engine.sequences.batch import Batch, Span
from pontil.runtime.engine.tiles.rows import plan_of

PROMPT = torch.randint(0, VOCAB, (333,), generator=torch.Generator().manual_seed(3)).tolist()


def device_list() -> list[str]:
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.mark.parametrize("device", device_list())
@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("cuts", [[333], [1, 332], [100, 100, 133], [64, 1, 15, 16, 17, 220], [256, 77]])
def test_logits_equal_those_of_transformers(cuts: list[int], tie: bool, device: str) -> None:
    hugging = reference(tie)
    with torch.inference_mode():
        expected = hugging(torch.tensor([PROMPT])).logits[0]
    ours = rig(build(hugging, tie, device=device))
    one = sequence("a", PROMPT)
    ours.scheduler.add(one)
    ours.scheduler.admit()
    start, rows = 0, []
    for count in cuts:
        ours.scheduler.memory.grow(one, start + count)
        for tile in Batch((Span(one, start, count),)).tiles():
            rows.append(
                ours.runner.tiles.project(ours.runner.tiles.forward(plan_of(tile, [*range(tile.rows)], [], []))).cpu()
            )
        start += count
    assert (torch.cat(rows) - expected).abs().max() < 1e-4


@pytest.mark.long  # runtime/models/test_architectures.py does so by default
def test_greedy_tokens_equal_those_of_transformers() -> None:
    hugging = reference()
    prompts = [PROMPT[:n] for n in (1, 15, 16, 17, 64, 200)]
    ours = rig(build(hugging)).engine
    for number, prompt in enumerate(prompts):
        ours.add(sequence(str(number), prompt, 64))
    tokens = drain(ours)
    for number, prompt in enumerate(prompts):
        ids = torch.tensor([prompt])
        everything = torch.ones_like(ids)
        expected = hugging.generate(
            ids, attention_mask=everything, max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert tokens[str(number)] == expected[0, len(prompt) :].tolist()
