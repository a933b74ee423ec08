# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters (Hu et al., 2021, arXiv 2106.09685) of a product."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

NO_ADAPTER = -1
"""The number of the adapter of a row that has none."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """`y += up (down x)`: `down` [rank, inputs] and `up` [outputs, rank], which has the scale, both float32."""

    down: Tensor
    up: Tensor

    @property
    def rank(self) -> int:
        return len(self.down)

    def part(self, outputs: range, inputs: range) -> "LowRank":
        """The part of it for some outputs and inputs of the product."""
        return LowRank(self.down[:, inputs.start : inputs.stop], self.up[outputs.start : outputs.stop])

    @property
    def nbytes(self) -> int:
        return self.down.nbytes + self.up.nbytes


@dataclass(frozen=True, slots=True)
class MadeAdapter:
    """An adapter that was laid out to be computed, of so many bytes. `put` has it computed for rows of a number; no
    step runs then."""

    nbytes: int
    put: Callable[[int], object]
