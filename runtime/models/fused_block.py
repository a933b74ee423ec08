# SPDX-License-Identifier: Apache-2.0
"""A layer as the CPU's kernels compute it, built from the parts of a Block."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pontil.gpu_ops.activation import gelu_and_mul
from pontil.gpu_ops.collectives.shared_memory import exchange_bytes
from pontil.gpu_ops.kernels.layer import AttentionHalf, HeadShape, Layers, MlpHalf, Norms, can_compute
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.linear import matrix_of
from pontil.gpu_ops.kernels.tile import KernelTile
from pontil.runtime.models.attention import Attention
from pontil.runtime.models.blocks import Block
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.models.mlp import GatedMlp
from pontil.runtime.models.norm import Norm
from pontil.runtime.models.rotary import Angles

# Rows of the largest tile that ranks compute together.
MOST_ROWS = 512


def kernels_fit(config: ModelConfig, dtype: torch.dtype, ranks: int = 1) -> bool:
    """Return whether the kernels can compute every layer of this model, divided over so many ranks."""
    if config.weight_block is not None or config.latent is not None or config.sinks:
        return False
    if config.rotated != config.head_dim or config.interleaved:
        return False
    inner = config.experts.intermediate_size if config.experts else config.intermediate_size
    sizes = (config.hidden_size, *config.mlp_sizes)
    parts = (size // ranks for size in sizes)
    return can_compute(dtype, shape_of(config, ranks), *sizes, inner, *parts)


def shape_of(config: ModelConfig, ranks: int = 1) -> HeadShape:
    """The heads of one of so many ranks; with fewer KV heads than ranks each has one."""
    return HeadShape(config.num_heads // ranks, max(1, config.num_kv_heads // ranks), config.head_dim)


def shared_bytes(config: ModelConfig) -> int:
    """The size of the memory through which ranks that compute this model exchange rows."""
    heads = config.num_heads * config.head_dim
    return exchange_bytes(max(config.hidden_size, *config.mlp_sizes, heads), MOST_ROWS)


class FusedBlock:
    """One layer from residual stream to residual stream, in place where possible. A replacement of the MLP is computed
    by itself."""

    def __init__(self, block: Block, library: KernelLibrary, config: ModelConfig, angles: Angles) -> None:
        self.block = block
        after = (None, None) if block.after is None else block.after
        assert isinstance(block.attention, Attention)
        self.attention = fused_attention(block.attention, library, config, angles, (block.before[0], after[0]))
        self.mlp = None
        if isinstance(block.feed_forward, GatedMlp):
            self.mlp = fused_mlp(block.feed_forward, library, (block.before[1], after[1]))

    def __call__(self, hidden: Tensor, tile: KernelTile) -> Tensor:
        """Run the layer on hidden float32 [rows, hidden_size]."""
        self.attention(hidden, tile)
        return self.feed(hidden)

    def only(self, hidden: Tensor, tile: KernelTile, rows: Sequence[int]) -> Tensor:
        """The layer's results for these rows, in order. For the others only keys and values are stored."""
        if len(rows) == tile.rows:
            return self(hidden, tile)
        if not self.attention.store(hidden, tile):
            return self(hidden, tile)[rows]
        some = hidden[rows]
        return self(some, tile.only(rows)) if rows else some

    def feed(self, hidden: Tensor) -> Tensor:
        if self.mlp is None:
            return self.block.feed(hidden)
        self.mlp(hidden, hidden)
        return hidden


class FusedStack:
    """Blocks one after the other; all of them in one call if each consists of two kernel halves."""

    def __init__(self, blocks: Sequence[FusedBlock], library: KernelLibrary) -> None:
        self.blocks, self.library = blocks, library
        self.divided: dict[int, tuple[FusedStack, FusedStack]] = {}
        halves = [(block.attention, block.mlp) for block in blocks if block.mlp is not None]
        self.layers = Layers(library, halves) if len(halves) == len(blocks) else None

    def __call__(self, hidden: Tensor, tile: KernelTile) -> Tensor:
        """Run all blocks on hidden float32 [rows, hidden_size], which may be changed."""
        if self.layers is not None:
            self.layers(hidden, tile)
            return hidden
        for block in self.blocks:
            hidden = block(hidden, tile)
        return hidden

    def parts(self, count: int) -> "tuple[FusedStack, FusedStack]":
        """The first `count` blocks, and the others."""
        if count not in self.divided:
            first, rest = self.blocks[:count], self.blocks[count:]
            self.divided[count] = FusedStack(first, self.library), FusedStack(rest, self.library)
        return self.divided[count]


def fused_attention(
    attention: Attention, library: KernelLibrary, config: ModelConfig, angles: Angles, norms: tuple[Norm, Norm | None]
) -> AttentionHalf:
    heads, out = attention.norms, matrix_of(attention.o)
    weights = Norms(
        norms[0].eps,
        norms[0].weight,
        None if norms[1] is None else norms[1].weight,
        None if heads is None else heads.query.weight,
        None if heads is None else heads.key.weight,
    )
    return AttentionHalf(
        library,
        matrix_of(attention.qkv),
        out,
        weights,
        angles,
        shape_of(config, config.hidden_size // out.outputs),
        attention.index,
        attention.scale,
        attention.window,
    )


def fused_mlp(mlp: GatedMlp, library: KernelLibrary, norms: tuple[Norm, Norm | None]) -> MlpHalf:
    weights = Norms(norms[0].eps, norms[0].weight, None if norms[1] is None else norms[1].weight)
    return MlpHalf(library, matrix_of(mlp.gate_up), matrix_of(mlp.down), weights, mlp.activation is gelu_and_mul)
