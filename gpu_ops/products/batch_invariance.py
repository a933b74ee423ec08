# SPDX-License-Identifier: Apache-2.0
"""Row counts for which a matrix product is batch-invariant: a row's bits do not depend on how many others there are.

A library picks its kernel by the number of rows, and two kernels may add the same products in another order. Row counts
that give equal bits form a class. Generated positions run in tiles of at most GENERATED_ROWS rows, prompt positions in
tiles of at most PROMPT_ROWS, and short tiles are padded up to a size that is known to be in the class of the full tile.
These sizes are measured at start, with the weights that will be used (rule C16).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pontil.gpu_ops.products.linear import Linear

GENERATED_ROWS = 32
PROMPT_ROWS = 256
PROMPT_STEP = 64
# Distinct rows of a probe's weight; they repeat, so that a large weight costs no time to draw.
TWIN_ROWS = 128


@dataclass(frozen=True, slots=True)
class BatchInvariance:
    """The row counts to which tiles are padded. `generated` and `head` are floors (any count from there to
    GENERATED_ROWS is one class), `prompt` is a tuple of sizes, ascending, the last being PROMPT_ROWS."""

    generated: int
    head: int
    prompt: tuple[int, ...]

    def pad_generated(self, rows: int) -> int:
        return max(rows, self.generated)

    def pad_head(self, rows: int) -> int:
        return max(rows, self.head)

    def pad_prompt(self, rows: int) -> int:
        return next(size for size in self.prompt if size >= rows)


ANY_ROWS = BatchInvariance(1, 1, tuple(range(1, PROMPT_ROWS + 1)))
"""For products that are batch-invariant for any number of rows."""


@dataclass(frozen=True, slots=True)
class InvarianceProbe:
    """A product and rows [PROMPT_ROWS, in] for it whose results reveal the order in which their terms were added."""

    linear: Linear
    rows: Tensor

    def agrees(self, count: int, reference: Tensor) -> bool:
        """Return whether `count` rows give the reference's bits, each row also at another place among the rows."""
        rows, expected = self.rows[:count], reference[:count]
        return torch.equal(self.linear(rows), expected) and torch.equal(self.linear(rows.flip(0)), expected.flip(0))


def measure(linears: Sequence[Linear], head: Sequence[Linear]) -> BatchInvariance:
    """Run every distinct shape with every row count that a tile may have, and keep the counts whose bits agree.

    `head` is the projection to the vocabulary in its parts. Products that are batch-invariant by themselves, on a
    device, are left out.
    """
    probes = probes_of(linear for linear in linears if not linear.has_invariant_rows)
    last = probes_of(one for one in head if not one.has_invariant_rows)
    return BatchInvariance(
        generated=max((floor(one, GENERATED_ROWS) for one in probes), default=1),
        head=max((floor(one, GENERATED_ROWS) for one in last), default=1),
        prompt=tuple(sizes(probes)) if probes else ANY_ROWS.prompt,
    )


def same_on_one_thread(linears: Sequence[Linear], head: Sequence[Linear]) -> bool:
    """Return whether full tiles have the bits that a single thread gives: a worker with more cores must agree with one
    that has fewer. Changes the number of threads for the duration of the call."""
    probes, last = probes_of(linears), probes_of(head)

    def full_tiles() -> list[Tensor]:
        tiles = [one.linear(one.rows[:rows]) for one in probes for rows in (GENERATED_ROWS, PROMPT_ROWS)]
        return tiles + [one.linear(one.rows[:GENERATED_ROWS]) for one in last]

    threads = torch.get_num_threads()
    ours = full_tiles()
    torch.set_num_threads(1)
    try:
        return all(torch.equal(one, alone) for one, alone in zip(ours, full_tiles(), strict=True))
    finally:
        torch.set_num_threads(threads)


def probes_of(linears: Iterable[Linear]) -> list[InvarianceProbe]:
    """One probe for each distinct shape, with and without a bias."""
    distinct = {
        (type(linear), linear.out_features, linear.in_features, linear.dtype, linear.bias is None): linear
        for linear in linears
    }
    return [probe(one) for one in distinct.values()]


def floor(one: InvarianceProbe, full: int) -> int:
    """The smallest row count from which on every count up to `full` gives the bits that `full` gives."""
    reference = one.linear(one.rows[:full])
    lowest = full
    while lowest > 1 and one.agrees(lowest - 1, reference):
        lowest -= 1
    return lowest


def sizes(probes: Iterable[InvarianceProbe]) -> list[int]:
    """The multiples of PROMPT_STEP whose bits are those of PROMPT_ROWS, for every given shape."""
    agreeing = set(range(PROMPT_STEP, PROMPT_ROWS + 1, PROMPT_STEP))
    for one in probes:
        reference = one.linear(one.rows)
        agreeing = {rows for rows in agreeing if one.agrees(rows, reference)}
    return sorted(agreeing | {PROMPT_ROWS})


def probe(linear: Linear) -> InvarianceProbe:
    """Build a product whose results reveal any order of addition.

    float32 results do so by themselves. Results of narrower types are rounded, which hides most differences, so the
    probe then uses a twin of the same shape whose large terms cancel: what is left over is mostly the error."""
    generator = torch.Generator().manual_seed(0)
    half = linear.in_features // 2
    odd = linear.in_features % 2
    rows = torch.randn(PROMPT_ROWS, half, generator=generator)
    rows = torch.nn.functional.pad(torch.cat((rows, rows.flip(1)), dim=1), (0, odd))
    rows = rows.to(device=linear.device, dtype=linear.dtype)
    if linear.dtype == torch.float32:
        return InvarianceProbe(linear, rows)
    some = min(linear.out_features, TWIN_ROWS)
    weight = torch.randn(some, half, generator=generator)
    nearly = -weight.flip(1) * (1 + torch.randn(some, half, generator=generator) * 2**-9)
    weight = torch.nn.functional.pad(torch.cat((weight, nearly), dim=1), (0, odd))
    weight = weight.repeat(-(-linear.out_features // some), 1)[: linear.out_features]
    return InvarianceProbe(linear.twin(weight.to(device=linear.device, dtype=linear.dtype)), rows)
