# SPDX-License-Identifier: Apache-2.0
"""Draft layers in directories: found by their configuration, and refused in one sentence where they do not fit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from quantized_directory import FORMS, quantize
from safetensors.torch import load_file, save_file
from tiny_draft_layers import write_eagle_head, write_mtp_hybrid, write_mtp_model
from tiny_hybrid import write_tiny_hybrid
from tiny_llama import write_json, write_tiny_llama

from pontil.runtime.errors import DraftModelError, ModelError
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.loaders.draft_layers import find_draft_layer, is_eagle, open_draft_layer
from pontil.runtime.loaders.facts.shards import WHOLE
from pontil.runtime.worker.start.draft_pair import check_pair


@pytest.fixture
def target(tmp_path: Path) -> Path:
    write_tiny_llama(tmp_path / "target")
    return tmp_path / "target"


@pytest.fixture
def head(tmp_path: Path, target: Path) -> Path:
    write_eagle_head(tmp_path / "head", target)
    return tmp_path / "head"


def change(folder: Path, **fields: Any) -> None:
    write_json(folder / "config.json", json.loads((folder / "config.json").read_text()) | fields)


def change_tensors(folder: Path, drop: str = "", more: dict[str, torch.Tensor] | None = None) -> None:
    tensors = load_file(folder / WHOLE)
    kept = {name: tensor for name, tensor in tensors.items() if name != drop}
    save_file(kept | (more or {}), folder / WHOLE, metadata={"format": "pt"})


def test_a_head_is_known_by_its_configuration(target: Path, head: Path) -> None:
    assert is_eagle(head) and not is_eagle(target) and not is_eagle(target / "none")
    found = find_draft_layer(target, head)
    assert found is not None and not found.is_mtp and found.form.bias and not found.form.normed
    assert find_draft_layer(target, target) is None
    check_pair(target, head)
    # As vLLM writes it: the sizes in a section of their own, and names of a whole model.
    fields = json.loads((head / "config.json").read_text())
    write_json(head / "config.json", {"model_type": "eagle", "architectures": ["EAGLEModel"], "model": fields})
    assert find_draft_layer(target, head) is not None
    tensors = {f"model.{name}": tensor for name, tensor in load_file(head / WHOLE).items()}
    save_file(tensors, head / WHOLE, metadata={"format": "pt"})
    assert len(open_draft_layer(found).places) == len(found.shapes)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "is an EAGLE-3 head"),
        ({"draft_vocab_size": 32}, "is an EAGLE-3 head"),
        ({"num_hidden_layers": 2}, "is an EAGLE head of 2 layers"),
        ({"hidden_size": 32}, "hidden size 32 and 300 tokens, and target needs 1 layer, hidden size 64"),
        ({"vocab_size": 7}, "and 7 tokens"),
        ({"hidden_size": "large"}, "--speculative-model cannot be used: "),
        ({"hidden_act": "relu"}, "--speculative-model cannot be used: "),
    ],
)
def test_a_head_that_does_not_fit_is_refused(target: Path, head: Path, fields: dict[str, Any], says: str) -> None:
    change(head, **fields)
    with pytest.raises(DraftModelError) as caught:
        find_draft_layer(target, head)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_heads_tensors_are_checked(target: Path, head: Path) -> None:
    source = find_draft_layer(target, head)
    assert source is not None
    change_tensors(head, drop="fc.bias")
    with pytest.raises(DraftModelError, match=r"EAGLE head in .* lacks eh_proj\.bias"):
        open_draft_layer(source)
    change_tensors(head, more={"fc.bias": torch.zeros(3)})
    with pytest.raises(DraftModelError, match=r"has in another shape eh_proj\.bias \[3\]"):
        open_draft_layer(source)
    change_tensors(head, more={"fc.bias": torch.zeros(64), "layers.0.input_layernorm.weight": torch.ones(64)})
    with pytest.raises(DraftModelError, match=r"holds besides model\.layers\.0\.input_layernorm\.weight"):
        open_draft_layer(source)


def test_an_mtp_layer_is_the_one_behind_the_last(tmp_path: Path) -> None:
    write_mtp_model(tmp_path)
    source = find_draft_layer(tmp_path, "mtp")
    assert source is not None and source.is_mtp
    assert source.name_here("model.layers.2.shared_head.norm.weight") == "model.norm.weight"
    assert (
        source.name_here("model.layers.2.mlp.experts.7.up_proj.weight") == "model.layers.0.mlp.experts.7.up_proj.weight"
    )
    for other in ("model.layers.1.enorm.weight", "model.layers.2.shared_head.head.weight", "lm_head.weight"):
        assert source.name_here(other) is None
    change_tensors(tmp_path, drop="model.layers.2.hnorm.weight")
    with pytest.raises(DraftModelError, match=r"the MTP layer in .* lacks hnorm\.weight"):
        open_draft_layer(source)
    change(tmp_path, num_nextn_predict_layers=0)
    with pytest.raises(ModelError, match="needs a checkpoint with an MTP layer"):
        find_draft_layer(tmp_path, "mtp")


def test_a_hybrid_models_layer_stands_apart(tmp_path: Path) -> None:
    write_tiny_hybrid(tmp_path)
    with pytest.raises(DraftModelError, match="needs a checkpoint with an MTP layer, and .* has none"):
        find_draft_layer(tmp_path, "mtp")
    write_mtp_hybrid(tmp_path)
    before = dict(open_checkpoint(tmp_path).places)
    source = find_draft_layer(tmp_path, "mtp")
    assert source is not None and source.form.normed and source.form.feeds_normed
    assert not any(name.startswith("mtp") for name in before) and source.config.recurrent is None
    tensors = load_file(tmp_path / WHOLE)
    found = dict(open_draft_layer(source).tensors())
    assert torch.equal(found["eh_proj.weight"], tensors["mtp.fc.weight"])
    assert torch.equal(found["hnorm.weight"], tensors["mtp.pre_fc_norm_hidden.weight"])
    assert sum(name.startswith("mtp.") for name in tensors) == len(found)
    # Other programs write all experts in one tensor.
    prefix, parts = "mtp.layers.0.mlp.experts", dict[str, torch.Tensor]()
    for fused, names in {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.items():
        each = [torch.cat([tensors.pop(f"{prefix}.{number}.{name}.weight") for name in names]) for number in range(4)]
        parts[f"{prefix}.{fused}"] = torch.stack(each)
    save_file(tensors | parts, tmp_path / WHOLE, metadata={"format": "pt"})
    again = dict(open_draft_layer(source).tensors())
    assert again.keys() == found.keys() and all(torch.equal(again[name], found[name]) for name in found)
    # A further layer is not read; what this version does not know is refused.
    change_tensors(tmp_path, more={"mtp.layers.1.input_layernorm.weight": torch.ones(64)})
    assert len(open_draft_layer(source).places) == len(found)
    change_tensors(tmp_path, more={"mtp.embed_tokens.weight": torch.ones(4)})
    with pytest.raises(DraftModelError, match=r"the MTP layer in .* holds besides embed_tokens\.weight"):
        open_draft_layer(source)


@pytest.mark.parametrize("form", ["gptq-8", "bytes"])
@pytest.mark.parametrize("kind", ["mtp", "hybrid", "eagle"])
def test_quantized_layers_are_the_weights_that_they_stand_for(
    tmp_path: Path, target: Path, head: Path, kind: str, form: str
) -> None:
    folder = head
    if kind != "eagle":
        folder = target = tmp_path / "mtp"
        (write_mtp_model if kind == "mtp" else write_mtp_hybrid)(folder)
    named = head if kind == "eagle" else "mtp"
    source = find_draft_layer(target, named)
    assert source is not None
    plain = dict(open_draft_layer(source).tensors(torch.float32))
    stands_for = quantize(folder, *FORMS[form], kept=("embed", "head", "norm", "gate.", "kv_", "q_a", "q_b"))
    source = find_draft_layer(target, named)
    assert source is not None
    expected = plain | {source.name_here(name): torch.from_numpy(one).float() for name, one in stands_for.items()}
    found = dict(open_draft_layer(source).tensors(torch.float32))
    assert sorted(found) == sorted(plain) and any(not torch.equal(found[name], plain[name]) for name in plain)
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-6, rtol=1e-6)
