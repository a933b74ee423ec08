# SPDX-License-Identifier: Apache-2.0
"""Adapters of experts as PEFT stores them: of linear layers, and of parameters that hold all experts of a layer."""

import json
from pathlib import Path
from typing import Any

import kernels
import pytest
import torch
from architectures import ROUND_SIZES, VOCAB, hugging_model, read_model
from effort import by_default
from safetensors.torch import save_file
from tiny_adapters import CONFIG, logits_of
from torch import Tensor
from transformers import PreTrainedModel

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.runtime.errors import AdapterError
from pontil.runtime.loaders.config import read_config
from pontil.runtime.loaders.facts.adapter_facts import check_adapter
from pontil.runtime.loaders.hf.adapter import read_adapter
from pontil.runtime.models.model import Model

PROMPT = torch.randint(0, VOCAB, (70,), generator=torch.Generator().manual_seed(3)).tolist()
# Gates and ups one behind the other, or by turns with inputs first; other names of the module; and a router's bias.
MIXTURES = ("qwen3_moe", "gpt_oss", "granitemoehybrid", "mixtral", "deepseek_v3")
PREFIX = "base_model.model."


@pytest.fixture(scope="module")
def library() -> KernelLibrary:
    return kernels.opened()


def of_parameters(
    hugging: PreTrainedModel, rank: int, inputs_first: bool
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return random matrices of all parameters of experts by their stored names, and what each adds to its parameter
    without a factor. PEFT has the numbers of the first dimension in the first matrix, or the inputs."""
    tensors, added = dict[str, Tensor](), dict[str, Tensor]()
    swaps = inputs_first and hugging.config.model_type != "gpt_oss"
    for name, weight in hugging.named_parameters():
        module, _, last = name.rpartition(".")
        if weight.ndim != 3 or last not in ("gate_up_proj", "down_proj"):
            continue
        experts, first, second = weight.shape
        ins, outs = (second, first) if swaps else (first, second)
        down, up = torch.randn(experts * rank, ins) * ins**-0.5, torch.randn(outs, rank * experts) * 0.25
        equation = "ore,eri->eoi" if swaps else "ore,eri->eio"
        added[name] = torch.einsum(equation, up.view(outs, rank, experts), down.view(experts, rank, ins))
        stem = PREFIX + module + (".base_layer" if last == "gate_up_proj" else "")
        tensors |= {f"{stem}.lora_A.weight": down, f"{stem}.lora_B.weight": up}
    return tensors, added


def write(directory: Path, tensors: dict[str, Tensor], **config: object) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    save_file({name: one.contiguous() for name, one in tensors.items()}, directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    return directory


def put(model: Model, directory: Path) -> None:
    check_adapter(directory, model.config, "a test")
    adapters = model.adapters
    adapters.made(read_adapter(directory).own(adapters.shapes, "a test", adapters.config)).put(0)


def compare(model: Model, hugging: PreTrainedModel) -> None:
    with torch.inference_mode():
        found, expected = logits_of(model, 0, PROMPT), hugging(torch.tensor([PROMPT])).logits[0]
        torch.testing.assert_close(found, expected, atol=1e-4 * float(expected.abs().max()), rtol=1e-4)
        assert (expected - logits_of(model, -1, PROMPT)).abs().max() > 0.1


@pytest.mark.parametrize(
    ("name", "version"),
    by_default(
        {("qwen3_moe", "0.18.1"), ("qwen3_moe", "0.19.0"), ("gpt_oss", "0.19.1"), ("granitemoehybrid", "0.21.2")},
        [(name, version) for name in MIXTURES for version in ("0.17.1", "0.21.2.dev0")],
    ),
)
def test_an_adapter_of_parameters_is_computed_as_it_is_merged(
    name: str, version: str, tmp_path: Path, library: KernelLibrary
) -> None:
    hugging = hugging_model(name, ROUND_SIZES)
    hugging.save_pretrained(tmp_path)
    tensors, added = of_parameters(hugging, 3, version >= "0.19")
    # A rank and a factor of its own for one parameter, by the pattern that PEFT writes when it joins older ones.
    patterns = {"rank_pattern": {r".*\.gate_up_proj": 3}, "alpha_pattern": {r".*\.gate_up_proj": 9, "down_proj": 6}}
    write(tmp_path / "adapter", tensors, r=3, target_parameters=["down_proj"], peft_version=version, **patterns)
    with torch.no_grad():
        weights = dict(hugging.named_parameters())
        for parameter, more in added.items():
            weights[parameter].add_(more * (3 if parameter.endswith("gate_up_proj") else 2))
    for by_kernels in (False, True):
        model = read_model(tmp_path, torch.float32, kernels=library if by_kernels else None)
        put(model, tmp_path / "adapter")
        compare(model, hugging)


@pytest.mark.parametrize(
    ("name", "module", "parts"),
    [
        ("mixtral", "block_sparse_moe.experts.{}.{}", ("w1", "w3", "w2")),
        ("qwen3_moe", "mlp.experts.{}.{}", ("gate_proj", "up_proj", "down_proj")),
    ],
)
def test_an_adapter_of_each_experts_layers_has_the_names_of_older_programs(
    name: str, module: str, parts: tuple[str, ...], tmp_path: Path, library: KernelLibrary
) -> None:
    """Some experts have one, of other ranks; so has the router."""
    hugging = hugging_model(name, ROUND_SIZES)
    hugging.save_pretrained(tmp_path)
    weights, tensors, ranks = dict(hugging.named_parameters()), dict[str, Tensor](), {}
    with torch.no_grad():
        for expert in (0, 3):
            gate_up, down = (weights[f"model.layers.1.mlp.experts.{one}_proj"][expert] for one in ("gate_up", "down"))
            for part, weight in zip(parts, (*gate_up.chunk(2), down), strict=True):
                own, rank = module.format(expert, part), 4 + expert
                ranks[own] = rank
                tensors |= linear(f"model.layers.1.{own}", weight, rank)
        gate = f"model.layers.0.{module.partition('.')[0]}.gate"
        ranks[gate] = 2
        tensors |= linear(gate, weights["model.layers.0.mlp.gate.weight"], 2)
    write(tmp_path / "adapter", tensors, lora_alpha=4, alpha_pattern=ranks, rank_pattern=ranks)
    for by_kernels in (False, True):
        model = read_model(tmp_path, torch.float32, kernels=library if by_kernels else None)
        put(model, tmp_path / "adapter")
        compare(model, hugging)


def linear(name: str, weight: Tensor, rank: int) -> dict[str, Tensor]:
    """Return the matrices of a layer's adapter, which is merged into its weight."""
    outputs, inputs = weight.shape
    down, up = torch.randn(rank, inputs) * inputs**-0.5, torch.randn(outputs, rank) * 0.5
    weight += up @ down
    return {f"{PREFIX}{name}.lora_A.weight": down, f"{PREFIX}{name}.lora_B.weight": up}


@pytest.mark.long
@pytest.mark.parametrize("name", MIXTURES)
def test_what_peft_saves_of_parameters_is_computed_as_peft_does(
    name: str, tmp_path: Path, library: KernelLibrary
) -> None:
    peft: Any = pytest.importorskip("peft")
    hugging = hugging_model(name, ROUND_SIZES)
    hugging.save_pretrained(tmp_path)
    targets = ["experts.gate_up_proj", "experts.down_proj", "gate.weight", "router.weight"]
    config = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=["q_proj", "o_proj"], target_parameters=targets, init_lora_weights=False,
        rank_pattern={"experts.gate_up_proj": 6}, bias="none",
    )  # fmt: skip
    tuned = peft.get_peft_model(hugging, config)
    tuned.save_pretrained(tmp_path / "adapter")
    for by_kernels in (False, True):
        model = read_model(tmp_path, torch.float32, kernels=library if by_kernels else None)
        put(model, tmp_path / "adapter")
        compare(model, tuned)


def refused(tmp_path: Path, tensors: dict[str, Tensor], says: str, **config: object) -> None:
    """Expect the same sentence before anything is loaded and from a worker."""
    model = read_model(tmp_path)
    write(tmp_path / "adapter", tensors, **({"r": 3} | config))
    with pytest.raises(AdapterError, match=says):
        check_adapter(tmp_path / "adapter", read_config(tmp_path), "adapter x")
    with pytest.raises(AdapterError, match=says):
        read_adapter(tmp_path / "adapter").own(model.adapters.shapes, "adapter x", model.adapters.config)


def test_what_is_not_of_these_experts_is_refused(tmp_path: Path) -> None:
    hugging = hugging_model("qwen3_moe", ROUND_SIZES)
    hugging.save_pretrained(tmp_path)
    tensors, _ = of_parameters(hugging, 3, inputs_first=True)
    down = f"{PREFIX}model.layers.0.mlp.experts.lora_A.weight"
    up = down.replace("lora_A", "lora_B")
    refused(tmp_path, tensors, "has rank 3 for each|has rank 3, and", r=4)
    refused(tmp_path, tensors | {down: torch.ones(16, 32), up: torch.ones(96, 16)}, "no multiple of the 5 experts here")
    refused(tmp_path, tensors | {down: torch.ones(30, 32), up: torch.ones(96, 30)}, "has rank 6, and .* says 3")
    refused(tmp_path, tensors | {down: torch.ones(15, 33)}, "33 and 96 numbers beside their ranks")
    refused(tmp_path, {name: one for name, one in tensors.items() if name != up}, "no two matrices of one rank")
    refused(tmp_path, tensors | {up: torch.ones(96, 14)}, "no two matrices of one rank")
    wide = {down: torch.ones(1500, 32), up: torch.ones(96, 1500)}
    refused(tmp_path, tensors | wide, "has rank 300 for each of 5 experts: this version computes 1 to 256")
    weight = torch.ones(32, 96)
    refused(tmp_path, linear("model.layers.0.mlp.experts.5.up_proj", weight, 3), "does not have")
    refused(tmp_path, tensors | linear("model.layers.0.mlp.experts.1.up_proj", weight, 3), "up_proj twice")
    refused(tmp_path, linear("model.layers.0.mlp.gate", torch.ones(6, 96), 3), "another base: .* 6 outputs there")


def test_sizes_that_do_not_tell_which_matrix_has_the_inputs(tmp_path: Path) -> None:
    """The other parameter tells it, or the version of PEFT."""
    hugging = hugging_model("qwen3_moe", ROUND_SIZES | {"moe_intermediate_size": 96})
    hugging.save_pretrained(tmp_path)
    model = read_model(tmp_path)
    for inputs_first, version, other in ((True, "0.18.0", "0.19.0"), (False, "0.20.0", "0.18.9")):
        both, added = of_parameters(hugging, 3, inputs_first)
        alone = {name: one for name, one in both.items() if "base_layer" not in name}
        refused(tmp_path, alone, "do not tell which matrix of .*down_proj has its inputs: save it by a PEFT")
        for tensors, stated in ((both, version), (alone, other)):
            write(tmp_path / "adapter", tensors, r=3, lora_alpha=3, peft_version=stated)
            found = read_adapter(tmp_path / "adapter").own(model.adapters.shapes, "a test", model.adapters.config)
            for expert, expected in enumerate(added["model.layers.2.mlp.experts.down_proj"]):
                one = found[f"model.layers.2.mlp.experts.{expert}.down_proj"]
                torch.testing.assert_close(one.up @ one.down, expected)


def test_ranks_that_have_rows_of_their_own_refuse_adapters_of_experts(tmp_path: Path) -> None:
    hugging = hugging_model("qwen3_moe", ROUND_SIZES)
    hugging.save_pretrained(tmp_path)
    tensors, _ = of_parameters(hugging, 3, inputs_first=True)
    adapters = read_model(tmp_path).adapters
    shapes = {name: size for name, size in adapters.shapes.items() if ".experts." not in name}
    for some in (tensors, linear("model.layers.0.mlp.experts.0.up_proj", torch.ones(32, 96), 3)):
        read = read_adapter(write(tmp_path / "adapter", some, r=3))
        with pytest.raises(AdapterError, match="leave --data-parallel-attention out"):
            read.own(shapes, "adapter x", adapters.config)
