# SPDX-License-Identifier: Apache-2.0
"""Ranks with sequences of their own and shared-out experts: the bits of one process (H4), whatever the others bring."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import kernels
import pytest
import rank_calls
import rank_models
import torch
from architectures import VOCAB, hugging_model
from mixtures import DEEPER, MIXTURES
from rank_models import PromptRun
from rank_processes import RankProcesses
from tiny_omni import write_tiny_omni

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.models.partition import check_shares

RANDOM = torch.Generator().manual_seed(5)
# The tiles of each rank, where every second rank wants no rows of any but its last tile. The others' passes are longer.
CUTS = ([31, 1, 3, 10], [17, 20], [1, 1, 1, 1], [5, 33, 2])


OTHERS = [pytest.param(name, marks=pytest.mark.long) for name in MIXTURES if name != "deepseek_v3"]


@pytest.fixture(scope="module", params=["deepseek_v3", *OTHERS])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp(request.param)
    hugging_model(request.param, MIXTURES[request.param]).save_pretrained(made)
    return made


def runs_of(path: Path, ranks: int, dtype: torch.dtype, **more: Any) -> list[PromptRun]:
    return [
        PromptRun(
            path,
            dtype,
            torch.randint(0, VOCAB, (sum(cuts),), generator=RANDOM).tolist(),
            cuts,
            data_parallel=True,
            all_rows=rank % 2 == 0,
            **more,
        )
        for rank, cuts in enumerate(CUTS[:ranks])
    ]


def compare(answers: list[Any], runs: list[PromptRun], library: Any) -> None:
    """Compare what each rank has computed with one process that has all experts."""
    for answer, run in zip(answers, runs, strict=True):
        assert isinstance(answer, tuple), answer
        logits, highest = rank_models.computed(replace(run, data_parallel=False), library)
        assert torch.equal(answer[0], logits) and answer[1] == highest


def compare_by_kernels(processes: RankProcesses, runs: list[PromptRun]) -> None:
    processes.share(len(runs))
    library = kernels.opened()
    compare(processes.call(range(len(runs)), rank_models.compute_apart, runs, True), runs, library)
    library.close()


@pytest.mark.parametrize(
    ("ranks", "dtype"), [(2, torch.float32), pytest.param(4, torch.bfloat16, marks=pytest.mark.long)]
)
def test_each_rank_has_the_bits_of_one_process(
    processes: RankProcesses, path: Path, ranks: int, dtype: torch.dtype
) -> None:
    compare_by_kernels(processes, runs_of(path, ranks, dtype))


@pytest.mark.long
def test_rows_of_quantized_experts_travel_alike(processes: RankProcesses, path: Path) -> None:
    compare_by_kernels(processes, runs_of(path, 2, torch.bfloat16, quantization="int8"))


@pytest.mark.long
def test_shared_experts_with_a_gate_for_each_row(processes: RankProcesses, tmp_path: Path) -> None:
    write_tiny_omni(tmp_path)
    compare_by_kernels(processes, runs_of(tmp_path, 2, torch.bfloat16, talker=True))


def test_each_rank_adapts_its_own_recurrent_layers(processes: RankProcesses, tmp_path: Path) -> None:
    """From a position within a tile on; experts are left as they are."""
    hugging_model("qwen3_next", DEEPER).save_pretrained(tmp_path)
    compare_by_kernels(processes, runs_of(tmp_path, 2, torch.bfloat16, adapted_from=2, adapted_experts=False))


@pytest.mark.long
def test_torch_sends_the_same(processes: RankProcesses, path: Path, tmp_path: Path) -> None:
    """Without kernels, over gloo."""
    (descriptor,) = processes.call([0], rank_calls.create_over_torch, 2, f"file://{tmp_path}/store", 60.0)
    assert processes.call([1], rank_calls.join_over_torch, descriptor, 1) == [None]
    runs = runs_of(path, 2, torch.float32)
    compare(processes.call([0, 1], rank_models.compute_apart, runs, False), runs, None)


def test_experts_that_ranks_cannot_share_out_evenly_are_refused(path: Path) -> None:
    config = open_checkpoint(path).config
    check_shares(config, 4)
    with pytest.raises(ModelError, match="3 devices cannot have equal shares of the model's 8 experts"):
        check_shares(config, 3)
    with pytest.raises(ModelError, match="has no experts, and --data-parallel-attention shares them out"):
        check_shares(replace(config, experts=None), 2)
