# SPDX-License-Identifier: Apache-2.0
"""Adapters over several ranks: each has its part, or those of its experts, and rows take theirs along (rule H4)."""

from itertools import product
from pathlib import Path

import kernels
import pytest
import rank_calls
import rank_models
import torch
from architectures import VOCAB, hugging_model
from effort import by_default
from mixtures import MIXTURES, RECURRENT
from rank_models import PromptRun
from rank_processes import RankProcesses

PROMPT = torch.randint(0, VOCAB, (45,), generator=torch.Generator().manual_seed(3)).tolist()
# Rows before a start and behind it in one tile, tiles of either kind alone, and one of fewer rows than ranks.
CUTS, START = [9, 21, 1, 14], 13
WAYS = ("experts", "rows travel", "sums")
MODELS = MIXTURES | RECURRENT
DTYPES = (torch.float32, torch.bfloat16)
# Rows of hybrids do not travel here, and their sums are compared in the type in which rounding does not add up.
CASES = [
    *product(MIXTURES, WAYS, DTYPES), *product(RECURRENT, ["experts"], DTYPES),
    *product(RECURRENT, ["sums"], DTYPES[:1]),
]  # fmt: skip


@pytest.fixture(scope="module", params=MODELS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp(request.param)
    hugging_model(request.param, MODELS[request.param]).save_pretrained(made)
    return made


@pytest.mark.parametrize(
    ("path", "way", "dtype"),
    by_default(
        {
            *(("qwen3_moe", way, torch.float32) for way in WAYS),
            *((name, "rows travel", torch.bfloat16) for name in ("deepseek_v3", "gpt_oss")),
            ("qwen3_5_text", "experts", torch.bfloat16),
            ("qwen3_5_text", "sums", torch.float32),
        },
        CASES,
    ),
    indirect=["path"],
)
def test_ranks_have_the_bits_of_one_process(processes: RankProcesses, path: Path, way: str, dtype: torch.dtype) -> None:
    library = kernels.opened()
    run = PromptRun(
        path, dtype, PROMPT, CUTS, row_parallel=way == "sums", expert_parallel=way == "rows travel", adapted_from=START
    )
    processes.share(2)
    answers = processes.call(range(2), rank_models.compute_model, run, True)
    alone, highest = rank_models.computed(run, library)
    plain, _ = rank_models.computed(PromptRun(path, dtype, PROMPT, CUTS), library)
    library.close()
    assert torch.equal(alone[:START], plain[:START]) and (alone[START:] - plain[START:]).abs().max() > 0.1
    for answer in answers:
        assert isinstance(answer, tuple), answer
        if way == "sums":
            assert torch.equal(answer[0], answers[0][0])
            assert (answer[0] - alone).abs().max() < (2e-5 if dtype == torch.float32 else 5e-2) * alone.abs().max()
        else:
            assert torch.equal(answer[0], alone) and answer[1] == highest


@pytest.mark.parametrize(
    ("path", "expert_parallel"),
    by_default(
        {("qwen3_moe", False), ("qwen3_moe", True), ("qwen3_5_text", False)},
        [*product(MIXTURES, (False, True)), *product(RECURRENT, (False,))],
    ),
    indirect=["path"],
)
def test_torch_gives_the_bits_of_one_process(
    processes: RankProcesses, path: Path, tmp_path: Path, expert_parallel: bool
) -> None:
    """Without kernels, over gloo."""
    (descriptor,) = processes.call([0], rank_calls.create_over_torch, 2, f"file://{tmp_path}/store", 60.0)
    assert processes.call([1], rank_calls.join_over_torch, descriptor, 1) == [None]
    run = PromptRun(path, torch.float32, PROMPT, CUTS, adapted_from=START, expert_parallel=expert_parallel)
    answers = processes.call([0, 1], rank_models.compute_model, run, False)
    logits, highest = rank_models.computed(run)
    for answer in answers:
        assert isinstance(answer, tuple), answer
        assert torch.equal(answer[0], logits) and answer[1] == highest
