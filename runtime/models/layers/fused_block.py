# SPDX-License-Identifier: Apache-2.0
"""A layer as the CPU's kernels compute it, built from the parts of a Block."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pontil.gpu_ops.collectives.shared_memory import exchange_bytes
from pontil.gpu_ops.kernels.layer import Layers, Norms, Rotation, can_compute
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.tile import KernelTile
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.models.layers.blocks import Block
from pontil.runtime.models.layers.norm import Norm

# Rows of the largest tile that ranks compute together.
MOST_ROWS = 512


def kernels_fit(config: ModelConfig, dtype: torch.dtype, ranks: int = 1) -> bool:
    """Return whether the kernels can compute every layer of this model, divided over so many ranks."""
    inner = config.experts.intermediate_size if config.experts else config.intermediate_size
    divided = (config.hidden_size, *config.mlp_sizes)
    parts = (size // ranks for size in divided)
    return can_compute(dtype, *head_sizes(config), inner, *divided, *parts)


def head_sizes(config: ModelConfig) -> tuple[int, ...]:
    """The sizes of a head, and of what heads are made from."""
    latent, recurrent = config.latent, config.recurrent
    if recurrent is not None:
        return (config.head_dim, recurrent.key_dim, recurrent.value_dim)
    if latent is None:
        return (config.head_dim,)
    return (latent.query_rank or 0, latent.rank, latent.key_dim, latent.rotary_dim, latent.value_dim)


def shared_bytes(config: ModelConfig, parts: int = 1) -> int:
    """The size of the memory through which ranks that compute this model exchange rows, or so many `parts` of each."""
    heads = config.num_heads * (config.head_dim if config.latent is None else config.latent.value_dim)
    if config.recurrent is not None:
        heads = max(heads, config.recurrent.value_heads * config.recurrent.value_dim)
    return exchange_bytes(max(config.hidden_size * parts, *config.mlp_sizes, heads), MOST_ROWS)


class FusedBlock:
    """One layer from residual stream to residual stream, in place where possible."""

    def __init__(self, library: KernelLibrary, block: Block, rotation: Rotation) -> None:
        after = (None, None) if block.after is None else block.after
        norms = [half_norms(one, other) for one, other in zip(block.before, after, strict=True)]
        self.attention = block.attention.half(norms[0], rotation)
        self.feed_forward, self.takes_rows = block.feed_forward.half(norms[1]), block.feed_forward.takes_rows
        self.layer = Layers(library, [(self.attention, self.feed_forward)])

    def __call__(self, hidden: Tensor, tile: KernelTile) -> Tensor:
        """Run the layer on hidden float32 [rows, hidden_size]."""
        self.layer(hidden, tile)
        return hidden

    def only(self, hidden: Tensor, tile: KernelTile, rows: Sequence[int]) -> Tensor:
        """The layer's results for these rows, in order. For the others only keys and values are stored."""
        if len(rows) == tile.rows:
            return self(hidden, tile)
        if not self.attention.store(hidden, tile):
            return self(hidden, tile)[rows]
        some = hidden[rows]
        if rows:
            return self(some, tile.only(rows))
        if self.takes_rows:
            self.feed_forward(some, some)
        return some


def half_norms(before: Norm, after: Norm | None) -> Norms:
    return Norms(before.eps, before.for_kernels, None if after is None else after.for_kernels)


class FusedStack:
    """Blocks one after the other, in one call."""

    def __init__(self, blocks: Sequence[FusedBlock], library: KernelLibrary) -> None:
        self.blocks, self.library = blocks, library
        self.divided: dict[int, tuple[FusedStack, FusedStack]] = {}
        self.layers = Layers(library, [(block.attention, block.feed_forward) for block in blocks])

    def __call__(self, hidden: Tensor, tile: KernelTile) -> Tensor:
        """Run all blocks on hidden float32 [rows, hidden_size], in place."""
        self.layers(hidden, tile)
        return hidden

    def parts(self, count: int) -> "tuple[FusedStack, FusedStack]":
        """The first `count` blocks, and the others."""
        if count not in self.divided:
            first, rest = self.blocks[:count], self.blocks[count:]
            self.divided[count] = FusedStack(first, self.library), FusedStack(rest, self.library)
        return self.divided[count]
