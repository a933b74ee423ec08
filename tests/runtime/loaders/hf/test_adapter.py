# SPDX-License-Identifier: Apache-2.0
"""Adapters as PEFT stores them, and those that are refused with one sentence."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import save_file
from tiny_adapters import CONFIG, write_adapter

from pontil.gpu_ops.kernels.weights.arena import Arena
from pontil.gpu_ops.parameters.adapters import LowRank
from pontil.gpu_ops.products.adapters import ProductAdapters, RowAdapters
from pontil.runtime.errors import AdapterError, ModelError
from pontil.runtime.loaders.facts.adapter_facts import check_adapter, stored_digest
from pontil.runtime.loaders.hf.adapter import PeftAdapter, read_adapter
from pontil.runtime.models.adapters import AdaptedPart, AdaptedProduct
from pontil.runtime.models.partition import Partition, Split, by_columns

QUERY, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"
LAYERS = {QUERY: LowRank(torch.randn(4, 6), torch.randn(10, 4)), DOWN: LowRank(torch.randn(4, 8), torch.randn(6, 4))}


def test_factors_follow_ranks_and_patterns(tmp_path: Path) -> None:
    plain = read_adapter(write_adapter(tmp_path / "a", LAYERS))
    assert plain.layers.keys() == LAYERS.keys()
    torch.testing.assert_close(plain.layers[QUERY].up, LAYERS[QUERY].up)
    assert torch.equal(plain.layers[QUERY].down, LAYERS[QUERY].down)
    by_root = read_adapter(write_adapter(tmp_path / "b", LAYERS, use_rslora=True))
    torch.testing.assert_close(by_root.layers[QUERY].up, LAYERS[QUERY].up * 2)
    patterns = read_adapter(write_adapter(tmp_path / "c", LAYERS, alpha_pattern={"mlp.down_proj": 2, "x.q_proj": 1}))
    torch.testing.assert_close(patterns.layers[DOWN].up, LAYERS[DOWN].up / 4)
    torch.testing.assert_close(patterns.layers[QUERY].up, LAYERS[QUERY].up)
    wide = LAYERS | {DOWN: LowRank(torch.randn(9, 8), torch.randn(6, 9))}
    found = read_adapter(write_adapter(tmp_path / "d", wide, rank_pattern={"down_proj": 9}, lora_alpha=math.pi))
    torch.testing.assert_close(found.layers[DOWN].up, wide[DOWN].up / 2 * math.pi / 9)
    assert len({one.digest for one in (plain, by_root, patterns, found)}) == 4
    assert read_adapter(tmp_path / "a").digest == plain.digest
    assert plain.nbytes == 4 * sum(one.up.numel() + one.down.numel() for one in LAYERS.values())


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"peft_type": "IA3"}, "LORA only"),
        ({"use_dora": True}, "DoRA"),
        ({"bias": "all"}, "biases"),
        ({"lora_bias": True}, "biases"),
        ({"modules_to_save": ["lm_head"]}, "whole modules"),
        ({"r": 5}, "rank 4, and adapter_config.json says 5"),
        ({"r": 1 << 40}, "1 to 256"),
        ({"r": True}, "1 to 256"),
        ({"lora_alpha": "8"}, "lora_alpha"),
        ({"lora_alpha": math.inf}, "lora_alpha"),
        ({"alpha_pattern": {"(a+)+$": 1}}, "names of layers only"),
        ({"alpha_pattern": [1]}, "alpha_pattern"),
        ({"rank_pattern": {"q_proj": -1}}, "1 to 256"),
        ({"alora_invocation_tokens": []}, "has 0 tokens in alora_invocation_tokens: give 1 to 256"),
        ({"alora_invocation_tokens": [1] * 257}, "has 257 tokens"),
        ({"alora_invocation_tokens": "12"}, "no list of token ids"),
        ({"alora_invocation_tokens": [True]}, "no list of token ids"),
        ({"alora_invocation_tokens": [-1]}, "no list of token ids"),
        ({"alora_invocation_tokens": [1 << 40]}, "no list of token ids"),
    ],
)
def test_a_configuration_that_is_not_computed_is_refused(tmp_path: Path, config: dict[str, object], says: str) -> None:
    write_adapter(tmp_path, LAYERS, **config)
    for read in (read_adapter, checked):
        with pytest.raises(ModelError, match=says):
            read(tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda tensors: tensors.pop(f"base_model.model.{QUERY}.lora_A.weight"), "no two matrices"),
        (lambda tensors: tensors.update({"base_model.model.lm_head.weight": torch.ones(2, 2)}), "no linear layer"),
        (lambda tensors: tensors.update({f"base_model.model.{QUERY}.lora_A.weight": torch.ones(3, 6)}), "one rank"),
        (lambda tensors: tensors.update({f"base_model.model.{QUERY}.lora_A.weight": torch.ones(6)}), "no matrix"),
        (
            lambda tensors: tensors.update({f"base_model.model.{QUERY}.lora_A.weight": torch.full((4, 6), math.nan)}),
            "finite",
        ),
        (lambda tensors: tensors.clear(), "no tensors"),
    ],
)
def test_tensors_that_are_no_adapter_are_refused(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], object], says: str
) -> None:
    tensors = {
        f"base_model.model.{name}.lora_{letter}.weight": tensor.clone()
        for name, one in LAYERS.items()
        for letter, tensor in (("A", one.down), ("B", one.up))
    }
    change(tensors)
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps(CONFIG))
    for read in (read_adapter, *((checked,) if says != "finite" else ())):
        with pytest.raises(ModelError, match=says):
            read(tmp_path)


def test_tokens_that_activate_an_adapter_are_read_and_checked(tmp_path: Path) -> None:
    read = read_adapter(write_adapter(tmp_path / "a", LAYERS, alora_invocation_tokens=[3, 0, 96]))
    assert read.invocation == (3, 0, 96)
    assert read_adapter(write_adapter(tmp_path / "b", LAYERS, alora_invocation_tokens=None)).invocation == ()
    layer = {QUERY: LowRank(torch.randn(4, 48), torch.randn(48, 4))}
    write_adapter(tmp_path / "c", layer, alora_invocation_tokens=[96])
    assert check_adapter(tmp_path / "c", tiny.config(), "adapter x").invocation == (96,)
    write_adapter(tmp_path / "d", layer, alora_invocation_tokens=[3, 97])
    with pytest.raises(AdapterError, match="adapter x is activated by the token 97, and the model has 97"):
        check_adapter(tmp_path / "d", tiny.config(), "adapter x")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    def refused(says: str) -> None:
        for read in (read_adapter, checked):
            with pytest.raises(AdapterError, match=says):
                read(tmp_path)

    refused("no adapter of PEFT")
    write_adapter(tmp_path, LAYERS)
    assert stored_digest(tmp_path) == read_adapter(tmp_path).digest
    weights = tmp_path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    refused("damaged")
    weights.write_bytes(weights.read_bytes()[:30])
    refused("damaged")
    for text in ("[" * 100_000, "[]", "{"):
        (tmp_path / "adapter_config.json").write_text(text)
        refused("save the adapter again")


def checked(directory: Path) -> None:
    """Check an adapter as a launch does, before anything is loaded."""
    check_adapter(directory, tiny.config(), "adapter x")


def test_an_adapter_of_another_model_is_refused() -> None:
    for layers, says in (
        ({DOWN: LAYERS[DOWN]}, "does not have"),
        ({QUERY: LAYERS[DOWN]}, "another base"),
        ({"model.layers.0.mlp.experts.0.up_proj": LAYERS[DOWN]}, "does not have"),
        ({"model.layers.0.mlp.experts": LAYERS[DOWN]}, "does not have"),
    ):
        with pytest.raises(AdapterError, match=says):
            PeftAdapter("", layers).own({QUERY: (10, 6)}, "adapter x")


@pytest.mark.parametrize("split", [Split(outputs=by_columns), Split(inputs=by_columns)], ids=["outputs", "inputs"])
def test_ranks_have_parts_that_make_the_whole(split: Split) -> None:
    one, x = LowRank(torch.randn(3, 32), torch.randn(64, 3)), torch.randn(5, 32)
    rows, made = RowAdapters(), []
    rows.choose([0, -1, 0, 0, -1])
    for rank in range(2):
        partition = Partition(rank, 2)
        outputs, inputs = split.outputs(partition, 64), split.inputs(partition, 32)
        held = ProductAdapters(rows, [len(outputs)])
        own = AdaptedPart(((QUERY, 64),), outputs)
        part = AdaptedProduct(own.layers, 32, inputs, (own,), held).made({QUERY: one}, Arena())
        assert part is not None and part.nbytes == one.part(outputs, inputs).nbytes
        part.put(0)
        made.append(held.add(x[:, inputs.start : inputs.stop], torch.zeros(5, len(outputs))))
    whole = made[0] + made[1] if split.is_partial else torch.cat(made, 1)
    expected = x @ one.down.T @ one.up.T
    expected[[1, 4]] = 0
    torch.testing.assert_close(whole, expected)
