# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters (Hu et al., 2021, arXiv 2106.09685) of a product."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

NO_ADAPTER = -1
"""The number of the adapter of a row that has none."""
MOST_RANK = 256
ROW_TILE = 16
"""Rows of one adapter that a device multiplies together."""
RANK_PAIR = 2
"""Ranks whose products a CPU may add at once."""
RANK_STEP = 16
"""Ranks that a device multiplies together."""
MOST_NUMBERS = 2048
"""Numbers of adapters that a device has places for: more than a launch can name, and those that requests still use."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """`y += up (down x)`: `down` [rank, inputs] and `up` [outputs, rank], which has the scale, both float32. Those of
    equal products, as experts are, have a dimension more before these."""

    down: Tensor
    up: Tensor

    @property
    def rank(self) -> int:
        return self.down.shape[-2]

    def part(self, outputs: range | Tensor, inputs: range) -> "LowRank":
        """The part of it for some outputs, in their order, and some inputs of the product."""
        rows = slice(outputs.start, outputs.stop) if isinstance(outputs, range) else outputs
        return LowRank(self.down[..., inputs.start : inputs.stop], self.up[..., rows, :])

    def of(self, place: int) -> "LowRank":
        """The one of one of equal products."""
        return LowRank(self.down[place], self.up[place])

    def padded(self, step: int, outputs: int = 1) -> "LowRank":
        """The same with a rank that is a multiple of `step`, and outputs that are one of `outputs`."""
        more, behind = -self.rank % step, -self.up.shape[-2] % outputs
        return LowRank(pad(self.down, (0, 0, 0, more)), pad(self.up, (0, more, 0, behind)))

    @property
    def nbytes(self) -> int:
        return self.down.nbytes + self.up.nbytes


def stacked(parts: Sequence[LowRank | None]) -> LowRank | None:
    """Those of equal products together, as the largest rank needs it, with zeros for a product that has none; None if
    none has."""
    given = [part for part in parts if part is not None]
    if not given:
        return None
    most, first = max(part.rank for part in given), given[0]
    down = torch.zeros(len(parts), most, first.down.shape[1])
    up = torch.zeros(len(parts), len(first.up), most)
    for place, part in enumerate(parts):
        if part is not None:
            down[place, : part.rank], up[place, :, : part.rank] = part.down, part.up
    return LowRank(down, up)


def joined(parts: Sequence[tuple[LowRank | None, int]]) -> LowRank | None:
    """One adapter of products whose outputs are stacked, so many each, from the adapters of these; None if none has
    one. Each of several has ranks of its own, a whole number of pairs, which are zeros for the outputs of the others:
    so sums have the bits that they have alone."""
    (first, _), *more = parts
    given = [None if part is None else part.padded(RANK_PAIR) for part, _ in parts]
    downs = [part.down for part in given if part is not None]
    if not more or not downs:
        return first
    ups = [torch.zeros(size, 0) if one is None else one.up for one, (_, size) in zip(given, parts, strict=True)]
    return LowRank(torch.cat(downs), torch.block_diag(*ups))


@dataclass(frozen=True, slots=True)
class MadeAdapter:
    """An adapter that was laid out to be computed, of so many bytes. `put` has it computed for rows of a number; no
    step is started meanwhile."""

    nbytes: int
    put: Callable[[int], object]
