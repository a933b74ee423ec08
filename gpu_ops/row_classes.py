# SPDX-License-Identifier: Apache-2.0
"""How many rows a matrix product must have so that a row's bits do not depend on how many others there are.

A library picks its kernel by the number of rows, and two kernels may add the same products in another order. Row counts
that give equal bits form a class. Generated positions run in tiles of at most GENERATED_ROWS rows, prompt positions in
tiles of at most PROMPT_ROWS, and short tiles are padded up to a size that is known to be in the class of the full tile.
Which sizes those are is measured at start, for the very weights that will be used (SPEC C16).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pontil.gpu_ops.linear import Linear

GENERATED_ROWS = 32
PROMPT_ROWS = 256
PROMPT_STEP = 64


@dataclass(frozen=True, slots=True)
class RowClasses:
    """The row counts tiles are padded to. `generated` and `head` are floors (any count from there to GENERATED_ROWS is
    one class), `prompt` is a tuple of sizes, ascending, the last being PROMPT_ROWS."""

    generated: int
    head: int
    prompt: tuple[int, ...]

    def pad_generated(self, rows: int) -> int:
        return max(rows, self.generated)

    def pad_head(self, rows: int) -> int:
        return max(rows, self.head)

    def pad_prompt(self, rows: int) -> int:
        return next(size for size in self.prompt if size >= rows)


def measure(linears: Sequence[Linear], head: Linear) -> RowClasses:
    """Run every distinct shape with every row count that a tile may have, and keep the counts whose bits agree."""
    distinct = list({(one.out_features, one.in_features, one.dtype): one for one in linears}.values())
    return RowClasses(
        generated=max(floor(one, GENERATED_ROWS) for one in distinct),
        head=floor(head, GENERATED_ROWS),
        prompt=tuple(sizes(distinct)),
    )


def floor(linear: Linear, full: int) -> int:
    """The smallest row count from which on every count up to `full` gives the bits that `full` gives."""
    x = probe(linear, full)
    reference = linear(x)
    lowest = full
    while lowest > 1 and torch.equal(linear(x[: lowest - 1]), reference[: lowest - 1]):
        lowest -= 1
    return lowest


def sizes(linears: Iterable[Linear]) -> list[int]:
    """The multiples of PROMPT_STEP whose bits are those of PROMPT_ROWS, for every given shape."""
    agreeing = set(range(PROMPT_STEP, PROMPT_ROWS + 1, PROMPT_STEP))
    for linear in linears:
        x = probe(linear, PROMPT_ROWS)
        reference = linear(x)
        agreeing = {rows for rows in agreeing if torch.equal(linear(x[:rows]), reference[:rows])}
    return sorted(agreeing | {PROMPT_ROWS})


def probe(linear: Linear, rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, linear.in_features, generator=generator)
    return x.to(device=linear.device, dtype=linear.dtype)
