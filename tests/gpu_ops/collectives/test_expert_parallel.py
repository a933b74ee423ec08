# SPDX-License-Identifier: Apache-2.0
"""Rows that travel to the ranks that hold their experts: the bits of one process (H4), for each family with experts."""

from pathlib import Path

import kernels
import pytest
import rank_calls
import rank_models
import torch
from architectures import VOCAB, hugging_model
from effort import by_default
from mixtures import EVEN, MIXTURES
from rank_models import PromptRun
from rank_processes import RankProcesses
from tiny_omni import write_tiny_omni

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.models.partition import check_division

PROMPT = torch.randint(0, VOCAB, (45,), generator=torch.Generator().manual_seed(3)).tolist()
# A tile of fewer rows than ranks, and shares that differ.
CUTS = [31, 1, 3, 10]
SIZES = ((2, torch.float32), (4, torch.bfloat16))


@pytest.fixture(scope="module", params=MIXTURES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp(request.param)
    hugging_model(request.param, MIXTURES[request.param]).save_pretrained(made)
    return made


def compare(processes: RankProcesses, ranks: int, run: PromptRun) -> None:
    """Compare what ranks compute with one process that sends nothing."""
    library = kernels.opened()
    processes.share(ranks)
    answers = processes.call(range(ranks), rank_models.compute_model, run, True)
    logits, highest = rank_models.computed(run, library)
    library.close()
    for answer in answers:
        assert isinstance(answer, tuple), answer
        assert torch.equal(answer[0], logits) and answer[1] == highest


# By default each family once, both numbers of ranks and both types.
@pytest.mark.parametrize(
    ("path", "ranks", "dtype"),
    by_default(
        {(name, *SIZES[number % 2]) for number, name in enumerate(MIXTURES)},
        [(name, *size) for name in MIXTURES for size in SIZES],
    ),
    indirect=["path"],
)
def test_rows_that_travel_have_the_bits_of_one_process(
    processes: RankProcesses, path: Path, ranks: int, dtype: torch.dtype
) -> None:
    compare(processes, ranks, PromptRun(path, dtype, PROMPT, CUTS, expert_parallel=True))


def test_rows_of_quantized_experts_travel_alike(processes: RankProcesses, path: Path) -> None:
    run = PromptRun(path, torch.bfloat16, PROMPT, CUTS, quantization="int8", expert_parallel=True)
    compare(processes, 2, run)


@pytest.mark.parametrize("talker", [False, True], ids=["thinker", "talker"])
def test_a_model_that_speaks(processes: RankProcesses, tmp_path: Path, talker: bool) -> None:
    """The Talker's shared experts have a gate for each row."""
    write_tiny_omni(tmp_path)
    compare(processes, 2, PromptRun(tmp_path, torch.bfloat16, PROMPT, CUTS, talker, expert_parallel=True))


# Rows are sent alike for every family: the others' experts are divided by kernels above.
@pytest.mark.parametrize("path", by_default({"mixtral", "deepseek_v3"}, MIXTURES), indirect=True)
def test_torch_sends_the_same(processes: RankProcesses, path: Path, tmp_path: Path) -> None:
    """Without kernels, over gloo."""
    (descriptor,) = processes.call([0], rank_calls.create_over_torch, 2, f"file://{tmp_path}/store", 60.0)
    assert processes.call([1], rank_calls.join_over_torch, descriptor, 1) == [None]
    run = PromptRun(path, torch.float32, PROMPT, CUTS, expert_parallel=True)
    answers = processes.call([0, 1], rank_models.compute_model, run, False)
    logits, highest = rank_models.computed(run)
    for answer in answers:
        assert isinstance(answer, tuple), answer
        assert torch.equal(answer[0], logits) and answer[1] == highest


def test_ranks_that_add_parts_of_sums_send_rows_to_whole_experts(processes: RankProcesses, path: Path) -> None:
    """All have the same bits, but for those of attention near the ones of one process."""
    library = kernels.opened()
    run = PromptRun(path, torch.float32, PROMPT, CUTS, row_parallel=True, expert_parallel=True)
    processes.share(2)
    first, second = processes.call([0, 1], rank_models.compute_model, run, True)
    alone = rank_models.computed(run, library)[0]
    assert torch.equal(first[0], second[0]) and (first[0] - alone).abs().max() < 2e-5 * alone.abs().max()
    library.close()


def test_the_death_of_a_rank_ends_the_wait_for_its_rows(processes: RankProcesses) -> None:
    processes.share(3)
    given, counts = [torch.zeros(3, 5)] * 3, [[1, 1, 1]] * 3
    assert len(processes.call([0, 1, 2], rank_calls.all_to_all, given, counts)) == 3
    for rank in (0, 2):
        processes.send(rank, rank_calls.all_to_all, given, counts)
    processes.kill(1)
    assert [processes.answer(rank) for rank in (0, 2)] == ["CollectiveError: rank 1 has ended"] * 2


def test_experts_that_ranks_cannot_share_out_evenly_are_refused(tmp_path: Path) -> None:
    hugging_model("qwen3_moe", EVEN | {"num_experts": 6}).save_pretrained(tmp_path)
    config = open_checkpoint(tmp_path).config
    check_division(config, 2)
    with pytest.raises(ModelError, match=r"over 4 devices \(it has 6 experts\): join 2 devices with \+"):
        check_division(config, 4)
