# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters (Hu et al., 2021, arXiv 2106.09685) of a product."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import pad

NO_ADAPTER = -1
"""The number of the adapter of a row that has none."""
MOST_RANK = 256
ROW_TILE = 16
"""Rows of one adapter that a device multiplies together."""
RANK_STEP = 16
"""Ranks that a device multiplies together."""
MOST_NUMBERS = 2048
"""Numbers of adapters that a device has places for: more than a launch can name, and those that requests still use."""


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

    def padded(self, step: int) -> "LowRank":
        """The same with a rank that is a multiple of `step`."""
        more = -self.rank % step
        return LowRank(pad(self.down, (0, 0, 0, more)), pad(self.up, (0, more)))

    @property
    def nbytes(self) -> int:
        return self.down.nbytes + self.up.nbytes


@dataclass(frozen=True, slots=True)
class MadeAdapter:
    """An adapter that was laid out to be computed, of so many bytes. `put` has it computed for rows of a number; no
    step is started meanwhile."""

    nbytes: int
    put: Callable[[int], object]
