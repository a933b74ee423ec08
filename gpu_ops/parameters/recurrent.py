# SPDX-License-Identifier: Apache-2.0
"""Sizes of recurrent layers, and the rows that a device computes of them."""

from dataclasses import dataclass

from torch import Tensor

SPAN_NUMBERS = 4
"""Numbers that describe a span of a StateTile before those of its own blocks."""


@dataclass(frozen=True, slots=True)
class RecurrentSizes:
    """The sizes of one rank's part of a recurrent layer. A state is a matrix [key_dim, value_dim] for each value head,
    then the last `width` - 1 inputs of the `channels` of the convolution: queries and keys of the key heads, and
    values."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    width: int

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def channels(self) -> int:
        return 2 * self.keys + self.value_heads * self.value_dim

    @property
    def matrices(self) -> int:
        """The numbers of a state before those of its convolution."""
        return self.value_heads * self.key_dim * self.value_dim


@dataclass(frozen=True, slots=True)
class StateTile:
    """The rows of a tile, as kernels of recurrent layers read them, all int32.

    spans [spans, 4 + blocks]: the first row of a span of neighbouring positions of one sequence, its first position,
    how many there are, and the block that has the states before them, which is not read for position 0; then the blocks
    that the positions are in, each of `block_size` positions. A span of no positions is padding.
    rows [rows]: the span of each row; -1 for padding.
    """

    spans: Tensor
    rows: Tensor
    block_size: int
