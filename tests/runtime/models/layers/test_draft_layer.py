# SPDX-License-Identifier: Apache-2.0
"""Draft layers against plain torch around transformers' layers, which has no forward pass for them."""

import json
import re
from pathlib import Path

import kernels
import pytest
import torch
from architectures import hugging_model
from hybrid_mtp_reference import hybrid_reference
from safetensors.torch import load_file, save_file
from tiny_draft_layers import add_mtp_apart, write_eagle_head, write_mtp_hybrid, write_mtp_model
from tiny_llama import write_json, write_tiny_llama
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3DecoderLayer
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.tile import TileSpan
from pontil.gpu_ops.products.batch_invariance import ANY_ROWS
from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.engine.tiles.runner import TileRunner
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.loaders.draft_layers import DraftLayerSource, find_draft_layer, open_draft_layer
from pontil.runtime.loaders.facts.shards import WHOLE
from pontil.runtime.models.families.registry import build_draft_layer, build_model
from pontil.runtime.models.layers.draft_layer import DraftLayer
from pontil.runtime.models.weights import Packing, Weights

CPU = torch.device("cpu")
LENGTH = 37


def opened(target: Path, source: DraftLayerSource, library: KernelLibrary | None) -> DraftLayer:
    checkpoint, packing = open_checkpoint(target), Packing.of(library)
    model = build_model(checkpoint.config, Weights(checkpoint.tensors(), CPU, torch.float32, packing))
    layer = open_draft_layer(source)
    return build_draft_layer(layer.config, Weights(layer.tensors(), CPU, torch.float32, packing), model, source.form)


def ours(layer: DraftLayer, ids: Tensor, states: Tensor, cuts: list[int]) -> tuple[Tensor, Tensor]:
    """Compute rows in pieces; return the results, and their logits."""
    shape = layer.config
    layout = KVLayout(
        16, 1, shape.num_kv_heads, shape.head_dim, "float32", packed=layer.kernels is not None, planes=shape.kv_planes
    )
    tiles = TileRunner(layer, KVStorage(layout, 8, CPU), ANY_ROWS)
    start, found = 0, []
    with torch.inference_mode():
        rows = layer.rows(ids, states)
        for count in cuts:
            part = ids[start : start + count].tolist()
            span, own = TileSpan(start, count, [1, 2, 3, 4]), rows[start : start + count]
            found.append(tiles.forward(TilePlan(count == 1, part, [span], range(count), [], [], own)))
            start += count
        hidden = torch.cat(found)
        logits = layer.logits(hidden)
        if layer.kernels is not None:
            again, ranked = layer.ranked_logits(hidden)
            assert torch.equal(again, logits) and torch.equal(ranked.highest, logits.argmax(-1))
        return hidden, logits


def causal(length: int) -> Tensor:
    return torch.full((length, length), -torch.inf).triu(1)[None, None]


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def mtp_reference(folder: Path, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the target's states, the layer's results, and its logits."""
    config = DeepseekV3Config.from_pretrained(folder, attn_implementation="eager")
    target = DeepseekV3ForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32).eval()
    number, tensors = config.num_hidden_layers, load_file(folder / WHOLE)
    own = {name.split(".", 3)[3]: one for name, one in tensors.items() if name.startswith(f"model.layers.{number}.")}
    # Such files have a tensor for each expert; transformers stacks them.
    whole = DeepseekV3Config.from_pretrained(folder, attn_implementation="eager", num_hidden_layers=number + 1)
    deeper = DeepseekV3ForCausalLM.from_pretrained(folder, config=whole, dtype=torch.float32).eval()
    block = deeper.model.layers[number]
    assert isinstance(block, DeepseekV3DecoderLayer)
    with torch.no_grad():
        states = target.model(ids[None, :-1]).last_hidden_state[0]
        embedded = tensors["model.embed_tokens.weight"][ids[1:]]
        joined = torch.cat((rms(embedded, own["enorm.weight"]), rms(states, own["hnorm.weight"])), -1)
        rows = joined @ own["eh_proj.weight"].T
        angles = target.model.rotary_emb(rows[None], torch.arange(len(rows))[None])
        made = block(rows[None], attention_mask=causal(len(rows)), position_embeddings=angles)
        hidden = (made if isinstance(made, Tensor) else made[0]).view(len(rows), -1)
        return states, hidden, rms(hidden, own["shared_head.norm.weight"]) @ tensors["lm_head.weight"].T


def eagle_reference(folder: Path, head: Path, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    config = LlamaConfig.from_pretrained(folder, attn_implementation="eager")
    target = LlamaForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32).eval()
    own = load_file(head / WHOLE)
    block = LlamaDecoderLayer(config, 0).eval()
    block.input_layernorm = torch.nn.Identity()
    names = {name.removeprefix("layers.0."): one for name, one in own.items() if name.startswith("layers.0.")}
    assert not block.load_state_dict(names).missing_keys
    with torch.no_grad():
        states = target.model(ids[None, :-1]).last_hidden_state[0]
        rows = torch.cat((own["embed_tokens.weight"][ids[1:]], states), -1) @ own["fc.weight"].T + own["fc.bias"]
        angles = target.model.rotary_emb(rows[None], torch.arange(len(rows))[None])
        made = block(rows[None], attention_mask=causal(len(rows)), position_embeddings=angles)
        hidden = (made if isinstance(made, Tensor) else made[0]).view(len(rows), -1)
        return states, hidden, target.lm_head(hidden)


@pytest.mark.parametrize("by_kernels", [False, True])
@pytest.mark.parametrize("kind", ["mtp", "eagle"])
def test_the_layers_logits_are_those_of_plain_torch(tmp_path: Path, kind: str, by_kernels: bool) -> None:
    target, head = tmp_path / "target", tmp_path / "head"
    ids = torch.randint(3, 250, (LENGTH + 1,), generator=torch.Generator().manual_seed(1))
    if kind == "mtp":
        write_mtp_model(target, by_kernels=True)
        source = find_draft_layer(target, "mtp")
        states, hidden, logits = mtp_reference(target, ids)
    else:
        write_tiny_llama(target)
        write_eagle_head(head, target)
        source = find_draft_layer(target, head)
        states, hidden, logits = eagle_reference(target, head, ids)
    assert source is not None
    layer = opened(target, source, kernels.opened() if by_kernels else None)
    for cuts in ([LENGTH], [1] * LENGTH, [20, 1, 16]):
        found, guessed = ours(layer, ids[1:], states, cuts)
        torch.testing.assert_close(found, hidden, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(guessed, logits, rtol=1e-4, atol=1e-4)
    assert guessed.argmax(-1).unique().numel() > 5


def written_hybrid(folder: Path, kind: str) -> PreTrainedModel:
    """Write a hybrid model with an MTP layer, and return it without that."""
    if kind == "qwen3_next":
        write_mtp_hybrid(folder)
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        return model
    model = hugging_model(kind)
    model.save_pretrained(folder)
    add_mtp_apart(folder)
    # Published files of it hold a model of several parts.
    fields, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / WHOLE)
    write_json(folder / "config.json", {"model_type": "qwen3_5", "text_config": fields})
    nested = {re.sub("^model[.]", "model.language_model.", name): tensor for name, tensor in tensors.items()}
    save_file(nested, folder / WHOLE, metadata={"format": "pt"})
    return model


@pytest.mark.parametrize("by_kernels", [False, True])
@pytest.mark.parametrize("kind", ["qwen3_next", "qwen3_5_text"])
def test_a_hybrid_models_layer_is_that_of_plain_torch(tmp_path: Path, kind: str, by_kernels: bool) -> None:
    """With experts, and with an MLP and the embedding as the head."""
    model = written_hybrid(tmp_path, kind)
    ids = torch.randint(3, 90, (LENGTH + 1,), generator=torch.Generator().manual_seed(1))
    states, hidden, fed, logits = hybrid_reference(tmp_path, model, ids)
    source = find_draft_layer(tmp_path, "mtp")
    assert source is not None
    layer = opened(tmp_path, source, kernels.opened() if by_kernels else None)
    for cuts in ([LENGTH], [1] * LENGTH, [20, 1, 16]):
        found, guessed = ours(layer, ids[1:], states, cuts)
        for one, expected in ((found, hidden), (layer.fed(found), fed), (guessed, logits)):
            torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-4)
    assert guessed.argmax(-1).unique().numel() > 5
