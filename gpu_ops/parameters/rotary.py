# SPDX-License-Identifier: Apache-2.0
"""The parameters of a tile's rotation, as everything that turns queries and keys takes them."""

from dataclasses import dataclass

from torch import Tensor

HeadNormWeights = tuple[Tensor, Tensor, float]
"""The weights of the norms of queries and of keys, float32 [head_dim] each, and their epsilon."""


@dataclass(frozen=True, slots=True, eq=False)
class HeadTurn:
    """The rotation of a tile's queries and keys, by cosines and sines float32 [rows, rotated / 2], each head normed
    before where there are `norms`. With `interleaved`, dimensions 2i and 2i + 1 turn together."""

    cos: Tensor
    sin: Tensor
    interleaved: bool = False
    norms: HeadNormWeights | None = None
