# SPDX-License-Identifier: Apache-2.0
"""Whole models over several ranks: the bits of one process (rule H4), and the results of transformers."""

from itertools import product
from pathlib import Path

import kernels
import pytest
import rank_calls
import rank_models
import torch
from architectures import SIZES, VOCAB, hugging_model
from effort import by_default
from fp8_directory import write_fp8
from mxfp4_directory import write_mxfp4
from rank_models import PromptRun
from rank_processes import RankProcesses
from tiny_omni import write_tiny_omni
from torch import Tensor

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.models.partition import check_division

PROMPT = torch.randint(0, VOCAB, (77,), generator=torch.Generator().manual_seed(3)).tolist()
CUTS = [[77], [40, 1, 36]]
EVEN = SIZES | {
    "hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 8, "num_key_value_heads": 4,
    "moe_intermediate_size": 32, "num_experts": 4, "num_hidden_layers": 2,
}  # fmt: skip
LATENT = {
    "n_routed_experts": 8, "q_lora_rank": 32, "qk_rope_head_dim": 16, "v_head_dim": 16, "moe_intermediate_size": 64,
}  # fmt: skip
# Fewer KV heads than ranks: one, which all ranks have; two, which pairs share.
ARCHITECTURES = {
    "llama": EVEN,
    "qwen3_moe": EVEN | {"num_key_value_heads": 2},
    "gemma3_text": EVEN | {"num_key_value_heads": 1, "num_hidden_layers": 3},
    "deepseek_v3": EVEN | LATENT,
    "gpt_oss": EVEN,
    "qwen2": EVEN,
}
# Models that only torch's operations compute.
WITHOUT_KERNELS = {"deepseek_v3-fp8": EVEN | LATENT}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp(request.param)
    hugging_model(request.param, ARCHITECTURES[request.param]).save_pretrained(made)
    return made


@pytest.fixture(scope="module", params=ARCHITECTURES | WITHOUT_KERNELS)
def torch_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp(request.param)
    model = hugging_model(request.param.removesuffix("-fp8"), (ARCHITECTURES | WITHOUT_KERNELS)[request.param])
    if request.param.endswith("-fp8"):
        write_fp8(model, made)
    else:
        model.save_pretrained(made)
    return made


# By default each architecture once, both numbers of ranks and both types, and not each with each.
@pytest.mark.parametrize(
    ("path", "ranks", "dtype"),
    by_default(
        {
            *((name, 2, torch.bfloat16) for name in ("llama", "deepseek_v3", "qwen2")),
            *((name, 4, torch.float32) for name in ("qwen3_moe", "gemma3_text", "gpt_oss")),
        },
        product(ARCHITECTURES, (2, 4), (torch.bfloat16, torch.float32)),
    ),
    indirect=["path"],
)
def test_kernels_give_the_bits_of_one_process(
    processes: RankProcesses, path: Path, ranks: int, dtype: torch.dtype
) -> None:
    library = kernels.opened()
    for cuts in CUTS:
        processes.share(ranks)
        run = PromptRun(path, dtype, PROMPT, cuts)
        answers = processes.call(range(ranks), rank_models.compute_model, run, True)
        logits, highest = rank_models.computed(run, library)
        for answer in answers:
            assert isinstance(answer, tuple), answer
            assert torch.equal(answer[0], logits) and answer[1] == highest
    library.close()


@pytest.mark.parametrize("row_parallel", [False, True])
def test_experts_of_4_bits_are_divided_too(processes: RankProcesses, tmp_path: Path, row_parallel: bool) -> None:
    """A rank has a part of the groups of a product that joins what all have made."""
    write_mxfp4(hugging_model("gpt_oss", EVEN), tmp_path)
    processes.share(2)
    library = kernels.opened()
    run = PromptRun(tmp_path, torch.bfloat16, PROMPT, CUTS[1], row_parallel=row_parallel, quantization="gguf")
    found = joined(processes.call(range(2), rank_models.compute_model, run, True))
    logits, highest = rank_models.computed(run, library)
    if row_parallel:
        assert near(found[0], logits, torch.bfloat16)
    else:
        assert torch.equal(found[0], logits) and found[1] == highest
    library.close()


@pytest.mark.parametrize(
    ("torch_path", "dtype"),
    by_default(
        {(name, torch.bfloat16) for name in ("qwen3_moe", "deepseek_v3-fp8")},
        product(ARCHITECTURES | WITHOUT_KERNELS, (torch.bfloat16, torch.float32)),
    ),
    indirect=["torch_path"],
)
def test_torch_gives_the_bits_of_one_process(
    processes: RankProcesses, torch_path: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    """Without kernels, over gloo."""
    (descriptor,) = processes.call([0], rank_calls.create_over_torch, 2, f"file://{tmp_path}/store", 60.0)
    assert processes.call([1], rank_calls.join_over_torch, descriptor, 1) == [None]
    run = PromptRun(torch_path, dtype, PROMPT, CUTS[1])
    answers = processes.call([0, 1], rank_models.compute_model, run, False)
    logits, highest = rank_models.computed(run)
    for answer in answers:
        assert isinstance(answer, tuple), answer
        assert torch.equal(answer[0], logits) and answer[1] == highest


def joined(answers: list[object]) -> tuple[Tensor, list[int]]:
    """The logits, hidden states and ids that all ranks have."""
    first = answers[0]
    assert isinstance(first, tuple), first
    for answer in answers:
        assert isinstance(answer, tuple), answer
        assert torch.equal(answer[0], first[0]) and answer[1] == first[1]
    return first


# The weights that are divided by inputs: of attention, of latents, of experts, and with biases.
@pytest.mark.parametrize(
    ("path", "ranks", "quantization"),
    by_default(
        {("llama", 2, "int8"), ("gpt_oss", 2, "int8"), ("qwen3_moe", 4, "none"), ("deepseek_v3", 4, "none")},
        ((name, *how) for name in ARCHITECTURES for how in ((2, "int8"), (4, "none"))),
    ),
    indirect=["path"],
)
def test_row_parallel_ranks_come_close_to_one_process(
    processes: RankProcesses, path: Path, ranks: int, quantization: str
) -> None:
    """All of them have the same bits, in every run, and a row's do not depend on the tile (C16)."""
    library, dtype = kernels.opened(), torch.float32 if quantization == "none" else torch.bfloat16
    runs = [PromptRun(path, dtype, PROMPT, cuts, False, True, quantization) for cuts in CUTS]
    found = []
    for run in [*runs, runs[0]]:
        processes.share(ranks)
        found.append(joined(processes.call(range(ranks), rank_models.compute_model, run, True))[0])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert near(found[0], rank_models.computed(runs[0], library)[0], dtype)
    library.close()


def near(found: Tensor, alone: Tensor, dtype: torch.dtype) -> bool:
    """Return whether logits differ by the order of additions only, and do differ."""
    most = (found - alone).abs().max() / alone.abs().max()
    return 0 < float(most) < (2e-5 if dtype == torch.float32 else 3e-2)


@pytest.mark.parametrize(
    "torch_path", by_default({"gpt_oss", "deepseek_v3-fp8"}, ARCHITECTURES | WITHOUT_KERNELS), indirect=True
)
def test_row_parallel_torch_comes_close_to_one_process(
    processes: RankProcesses, torch_path: Path, tmp_path: Path
) -> None:
    (descriptor,) = processes.call([0], rank_calls.create_over_torch, 2, f"file://{tmp_path}/store", 60.0)
    assert processes.call([1], rank_calls.join_over_torch, descriptor, 1) == [None]
    run = PromptRun(torch_path, torch.float32, PROMPT, CUTS[1], row_parallel=True)
    first, second = (joined(processes.call([0, 1], rank_models.compute_model, run, False)) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert near(first[0], rank_models.computed(run)[0], torch.float32)


@pytest.mark.parametrize("talker", [False, True], ids=["thinker", "talker"])
def test_parts_of_a_model_that_speaks_have_the_bits_of_one_process(
    processes: RankProcesses, tmp_path: Path, talker: bool
) -> None:
    """The Talker has shared experts, which are divided, and a gate of them, which is not."""
    write_tiny_omni(tmp_path)
    processes.share(2)
    library = kernels.opened()
    run = PromptRun(tmp_path, torch.bfloat16, PROMPT, CUTS[1], talker)
    answers = processes.call(range(2), rank_models.compute_model, run, True)
    logits, highest = rank_models.computed(run, library)
    for answer in answers:
        assert isinstance(answer, tuple), answer
        assert torch.equal(answer[0], logits) and answer[1] == highest
    library.close()


# One process has those of transformers for every architecture, as runtime/models/test_kernels.py shows.
@pytest.mark.parametrize("path", by_default({"llama"}, ARCHITECTURES), indirect=True)
def test_logits_equal_those_of_transformers(
    processes: RankProcesses, path: Path, request: pytest.FixtureRequest
) -> None:
    name: str = request.node.callspec.params["path"]
    with torch.inference_mode():
        expected = hugging_model(name, ARCHITECTURES[name])(torch.tensor([PROMPT])).logits[0]
    processes.share(2)
    run = PromptRun(path, torch.float32, PROMPT, CUTS[0])
    answers = processes.call(range(2), rank_models.compute_model, run, True)
    for answer in answers:
        assert isinstance(answer, tuple), answer
        assert (answer[0][:, :VOCAB] - expected).abs().max() < 1e-4


@pytest.mark.parametrize("path", by_default({"llama"}, ARCHITECTURES), indirect=True)
def test_sizes_that_do_not_divide_are_refused_with_those_that_do(path: Path) -> None:
    config = open_checkpoint(path).config
    check_division(config, 2)
    with pytest.raises(ModelError, match=r"cannot be divided over 3 devices \(it has 8 query heads\): join 2 or 4"):
        check_division(config, 3)
