# SPDX-License-Identifier: Apache-2.0
"""One layer, from residual stream to residual stream, float32 [rows, hidden_size]."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from pontil.gpu_ops.kernels.layer import AttendingHalf, FeedingHalf, Norms, Rotation
from pontil.gpu_ops.kernels.linear import Product
from pontil.gpu_ops.kv.attention import PagedAttention
from pontil.gpu_ops.parameters.attention import LayerAttention
from pontil.runtime.models.layers.norm import Norm
from pontil.runtime.models.layers.rotary import Angles


class SelfAttention(Protocol):
    """The attention of one layer. x [rows, hidden_size] in the weights' dtype."""

    layer: LayerAttention

    @property
    def linears(self) -> Sequence[Product]: ...

    def __call__(self, x: Tensor, angles: Angles, attend: PagedAttention) -> Tensor: ...

    def half(self, norms: Norms, rotation: Rotation) -> AttendingHalf:
        """The same by the kernels, with the norms of input and output."""


class FeedForward(Protocol):
    """An MLP or its replacement. x [rows, hidden_size] in the weights' dtype. One that `takes_rows` of other ranks is
    called in every pass that they make, with no rows if there are none here."""

    @property
    def takes_rows(self) -> bool: ...

    @property
    def linears(self) -> Sequence[Product]: ...

    def __call__(self, x: Tensor) -> Tensor: ...

    def half(self, norms: Norms) -> FeedingHalf:
        """The same by the kernels, with the norms of input and output."""


class Block:
    """Pre-norm: each half reads the normed stream and adds to it. With sandwich norms, its result is normed before it
    is added."""

    def __init__(
        self,
        dtype: torch.dtype,
        attention: SelfAttention,
        feed_forward: FeedForward,
        *,
        before: tuple[Norm, Norm],
        after: tuple[Norm, Norm] | None = None,
    ) -> None:
        """`before` and `after` are the norms of the attention and of the feed-forward half."""
        self.dtype, self.attention, self.feed_forward = dtype, attention, feed_forward
        self.before, self.after = before, after

    @property
    def linears(self) -> list[Product]:
        return [*self.attention.linears, *self.feed_forward.linears]

    def __call__(self, hidden: Tensor, angles: Angles, attend: PagedAttention) -> Tensor:
        attended = self.attention(self.before[0](hidden, self.dtype), angles, attend)
        if self.after is not None:
            attended = self.after[0](attended)
        hidden, normed = self.before[1].after_sum(hidden, attended, self.dtype)
        made = self.feed_forward(normed)
        return hidden + (self.after[1](made) if self.after else made)
