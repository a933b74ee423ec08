# SPDX-License-Identifier: Apache-2.0
"""The MTP layer of Qwen3-Next and Qwen3.5 in plain torch, by its published tensors: transformers does not read it."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import silu
from transformers import PreTrainedModel

from pontil.runtime.loaders.config import read_config
from pontil.runtime.loaders.facts.shards import WHOLE
from pontil.runtime.models.config import ModelConfig


def normed(x: Tensor, weight: Tensor) -> Tensor:
    """These files hold norm weights less one."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (1 + weight)


def turned(x: Tensor, dims: int, theta: float) -> Tensor:
    """Rotate the first dimensions of heads [rows, heads, dims of a head], the halves of these with each other."""
    half = dims // 2
    angles = torch.arange(len(x))[:, None] * theta ** (-torch.arange(half) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second, rest = x[..., :half], x[..., half:dims], x[..., dims:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)


def attended(x: Tensor, own: dict[str, Tensor], shape: ModelConfig) -> Tensor:
    """Gated attention of all rows to those before them. A head's gate stands behind its query."""
    count, dim = len(x), shape.head_dim
    queries, gates = (x @ own["q_proj.weight"].T).view(count, shape.num_heads, 2 * dim).chunk(2, -1)
    keys, values = ((x @ own[f"{name}_proj.weight"].T).view(count, shape.num_kv_heads, dim) for name in "kv")
    queries = turned(normed(queries, own["q_norm.weight"]), shape.rotated, shape.rope_theta)
    keys = turned(normed(keys, own["k_norm.weight"]), shape.rotated, shape.rope_theta)
    shared = shape.num_heads // shape.num_kv_heads
    scores = torch.einsum("qhd,khd->hqk", queries, keys.repeat_interleave(shared, 1)) / dim**0.5
    weights = (scores + torch.full((count, count), -torch.inf).triu(1)).softmax(-1)
    mixed = torch.einsum("hqk,khd->qhd", weights, values.repeat_interleave(shared, 1)) * gates.sigmoid()
    return mixed.reshape(count, -1) @ own["o_proj.weight"].T


def gated_mlp(x: Tensor, own: dict[str, Tensor], name: str = "") -> Tensor:
    made = silu(x @ own[f"{name}gate_proj.weight"].T) * (x @ own[f"{name}up_proj.weight"].T)
    return made @ own[f"{name}down_proj.weight"].T


def of_experts(x: Tensor, own: dict[str, Tensor], each: int) -> Tensor:
    """The best experts of each row, whose weights are one together, and the one of all rows."""
    best = (x @ own["gate.weight"].T).softmax(-1).topk(each, -1)
    shares = best.values / best.values.sum(-1, keepdim=True)
    chosen = torch.stack([
        sum((share * gated_mlp(row, own, f"experts.{number}.") for share, number in zip(some, names, strict=True)))
        for row, some, names in zip(x, shares, best.indices.tolist(), strict=True)
    ])  # fmt: skip
    return chosen + (x @ own["shared_expert_gate.weight"].T).sigmoid() * gated_mlp(x, own, "shared_expert.")


def part(own: dict[str, Tensor], start: str) -> dict[str, Tensor]:
    return {name.removeprefix(start): tensor for name, tensor in own.items() if name.startswith(start)}


@torch.no_grad()
def hybrid_reference(folder: Path, target: PreTrainedModel, ids: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the target's states, the layer's results, what they feed to the next guess, and logits."""
    own, shape = part(load_file(folder / WHOLE), "mtp."), read_config(folder)
    states = target.model(ids[None, :-1]).last_hidden_state[0]
    embedded = target.get_input_embeddings()(ids[1:])
    pair = normed(embedded, own["pre_fc_norm_embedding.weight"]), normed(states, own["pre_fc_norm_hidden.weight"])
    rows, block = torch.cat(pair, -1) @ own["fc.weight"].T, part(own, "layers.0.")
    rows = rows + attended(normed(rows, block["input_layernorm.weight"]), part(block, "self_attn."), shape)
    between, mlp = normed(rows, block["post_attention_layernorm.weight"]), part(block, "mlp.")
    each = None if shape.experts is None else shape.experts.per_token
    hidden = rows + (gated_mlp(between, mlp) if each is None else of_experts(between, mlp, each))
    fed = normed(hidden, own["norm.weight"])
    return states, hidden, fed, target.get_output_embeddings()(fed)
