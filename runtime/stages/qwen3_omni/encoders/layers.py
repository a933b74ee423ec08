# SPDX-License-Identifier: Apache-2.0
"""The layers of both encoders: attention and an MLP, each of normed rows and added to them.

Sums, norms and attention are float32, products of the weights' type. An image or a recording is computed by itself,
so its rows depend on nothing else, and in the last bits on the number of torch's threads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from pontil.gpu_ops.elementwise import apply
from pontil.gpu_ops.kernels.linear import Product
from pontil.gpu_ops.rotary import apply_rotary
from pontil.runtime.models.layers.rotary import Angles
from pontil.runtime.models.weights import Weights
from pontil.runtime.stages.qwen3_omni.encoders.config import TowerSizes


@dataclass(frozen=True, slots=True)
class TowerForm:
    """The names of a layer's tensors; those of its queries, keys and values are one or three. `eps` is its norms'."""

    attention_norm: str
    qkv: tuple[str, ...]
    out: str
    mlp_norm: str
    up: str
    down: str
    eps: float
    activation: Callable[[Tensor], Tensor]


SOUND = TowerForm(
    "self_attn_layer_norm",
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.out_proj",
    "final_layer_norm",
    "fc1",
    "fc2",
    1e-5,
    F.gelu,
)
IMAGES = TowerForm(
    "norm1",
    ("attn.qkv",),
    "attn.proj",
    "norm2",
    "mlp.linear_fc1",
    "mlp.linear_fc2",
    1e-6,
    partial(F.gelu, approximate="tanh"),
)


class TowerNorm:
    """`(x - mean) / deviation * weight + bias` over the last axis, float32."""

    def __init__(self, weights: Weights, name: str, size: int, eps: float) -> None:
        self.weight, self.bias = (
            weights.take(f"{name}.{part}", size, dtype=torch.float32) for part in ("weight", "bias")
        )
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RowProduct:
    """A product of rows float32 with weights of their own type."""

    def __init__(self, product: Product, dtype: torch.dtype) -> None:
        self.product, self.dtype = product, dtype

    def __call__(self, x: Tensor) -> Tensor:
        return self.product(x.to(self.dtype).contiguous()).float()


def rows_linear(weights: Weights, inputs: int, *parts: tuple[str, int], bias: bool = True) -> RowProduct:
    return RowProduct(weights.linear(inputs, *parts, bias=bias), weights.dtype)


class TowerLayer:
    """A layer. Rows of one group see one another, whatever their order."""

    def __init__(self, form: TowerForm, sizes: TowerSizes, prefix: str, weights: Weights) -> None:
        hidden, inner = sizes.hidden_size, sizes.intermediate_size
        self.form, self.sizes = form, sizes
        self.attention_norm = TowerNorm(weights, prefix + form.attention_norm, hidden, form.eps)
        parts = [(prefix + name, 3 * hidden // len(form.qkv)) for name in form.qkv]
        self.qkv = rows_linear(weights, hidden, *parts)
        self.out = rows_linear(weights, hidden, (prefix + form.out, hidden))
        self.mlp_norm = TowerNorm(weights, prefix + form.mlp_norm, hidden, form.eps)
        self.up = rows_linear(weights, hidden, (prefix + form.up, inner))
        self.down = rows_linear(weights, inner, (prefix + form.down, hidden))

    def __call__(self, x: Tensor, groups: Sequence[int], angles: Angles | None = None) -> Tensor:
        """Compute the layer for x float32 [rows, hidden_size], which are groups of so many rows."""
        x = x + self.attend(self.attention_norm(x), groups, angles)
        return x + self.down(apply(self.form.activation, self.up(self.mlp_norm(x))))

    def attend(self, x: Tensor, groups: Sequence[int], angles: Angles | None) -> Tensor:
        q, k, v = self.qkv(x).view(len(x), 3, self.sizes.num_heads, self.sizes.head_dim).unbind(1)
        if angles is not None:
            q, k = apply_rotary(q, *angles), apply_rotary(k, *angles)
        # Its memory grows with the rows, not with their square: an image has as many as its client says.
        made = [
            F.scaled_dot_product_attention(*(one.transpose(0, 1).unsqueeze(0) for one in group))[0].transpose(0, 1)
            for group in zip(*(one.split(list(groups)) for one in (q, k, v)), strict=True)
        ]
        return self.out(torch.cat(made).reshape(len(x), -1))
