# SPDX-License-Identifier: Apache-2.0
"""Cuts found without an order keep the ids that the order of the whole row gives, and draws stay the same."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from effort import by_default, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pontil.gpu_ops.draws.nucleus import DOUBT, FEW, nucleus
from pontil.gpu_ops.draws.sampling import NARROW, UNIT, Shaping, nuclei_of, probabilities, sample

DRAWS = 40


def cleaned(row: Tensor) -> Tensor:
    """The row with a finite highest logit, and without NaN."""
    row = torch.where(row.isnan(), -torch.inf, row)
    return row if row.max().isfinite() else torch.where(row == row.max(), 0.0, -torch.inf)


def masses_of(falling: Tensor, highest: Tensor, temperature: float) -> Tensor:
    """The masses of logits [width]: int64 [width]."""
    scaled = (falling - highest) / torch.tensor(temperature, dtype=torch.float32)
    return (torch.softmax(scaled, -1) * UNIT).long()


def kept_by_order(row: Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> Tensor:
    """The rising ids that a sort of the whole row [vocabulary] keeps."""
    falling, order = row.sort(descending=True, stable=True)
    if 0 < top_k <= NARROW:
        falling = falling[:NARROW]
    count = min(top_k or len(falling), len(falling))
    if min_p > 0:
        lowest = falling[0].double() + torch.tensor(min_p, dtype=torch.float64).log() * temperature
        count = min(count, max(1, int((falling >= lowest.float()).sum())))
    if top_p < 1:
        cut = torch.where(torch.arange(len(falling)) < count, falling, -torch.inf)
        masses = masses_of(cut, falling[0], temperature)
        before = masses.cumsum(0) - masses
        count = min(count, max(1, int((before.double() < top_p * float(masses.sum())).sum())))
    return order[:count].sort().values


def drawn_by_order(row: Tensor, numbers: list[float], *params: Any) -> list[int]:
    """The ids drawn from a row after a sort."""
    row = cleaned(row)
    kept = kept_by_order(row, *params)
    cumulative = masses_of(row, row.max(), params[0])[kept].cumsum(0)
    total = int(cumulative[-1])
    targets = torch.tensor([min(int(number * float(total)), total - 1) for number in numbers])
    drawn: list[int] = kept[torch.searchsorted(cumulative, targets, right=True)].tolist()
    return drawn


@dataclass(frozen=True)
class Row:
    spread: float
    grain: float
    outstanding: int
    odd: float
    odds: float
    params: tuple[float, int, float, float]

    def logits(self, vocabulary: int, generator: torch.Generator) -> Tensor:
        """[vocabulary]"""
        row = torch.randn(vocabulary, generator=generator) * self.spread
        if self.grain:
            row = (row / self.grain).round() * self.grain
        row[torch.randint(0, vocabulary, (self.outstanding,), generator=generator)] += 4 * self.spread
        return torch.where(torch.rand(vocabulary, generator=generator) < self.odds, self.odd, row)


PARAMS = st.tuples(
    st.sampled_from([0.01, 0.8, 1.0, 5.0]) | st.floats(0.01, 5.0),
    st.sampled_from([0, 0, 0, 0, 5, NARROW, NARROW + 1]),
    st.sampled_from([1.0, 1.0 - 2.0**-53, 1.0 - DOUBT, 1.0 - 1e-6, 0.95, 0.5, 1e-7, 1e-300, 5e-324])
    | st.floats(0.5, 0.999)
    | st.floats(5e-324, 1.0),
    st.sampled_from([0.0, 0.0, 0.0, 1e-9, 0.02, 1.0]),
)
ROWS = st.builds(
    Row, st.sampled_from([0.0, 1e-6, 1e-3, 0.5, 3.0, 3.0, 20.0]), st.sampled_from([0.0, 0.0, 0.25, 2.0]),
    st.sampled_from([0, 0, 3, 30]), st.sampled_from([-torch.inf, torch.inf, torch.nan, 0.0, -0.0, 3.4e38, -3.4e38]),
    st.sampled_from([0.0, 0.0, 0.001, 0.5, 1.0]), PARAMS,
)  # fmt: skip


def shaping_of(params: list[tuple[float, int, float, float]]) -> Shaping:
    temperature, top_k, top_p, min_p = (list(values) for values in zip(*params, strict=True))

    def exact(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    return Shaping(exact(temperature), torch.tensor(top_k), exact(top_p), exact(min_p))


@settings(max_examples=examples(25, 400), deadline=None)
@given(
    st.lists(ROWS, min_size=1, max_size=5), st.sampled_from([1, 2, 97, FEW - 1, 5000, 49152]), st.integers(0, 10**6),
)  # fmt: skip
def test_what_is_kept_and_drawn_is_that_of_a_sort(rows: list[Row], vocabulary: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.stack([row.logits(vocabulary, generator) for row in rows])
    shaping = shaping_of([row.params for row in rows])
    for number, one in nuclei_of(*probabilities(logits, shaping), shaping).items():
        assert one.ids.tolist() == kept_by_order(cleaned(logits[number]), *rows[number].params).tolist()
    numbers = torch.rand(len(rows), DRAWS, generator=generator, dtype=torch.float64)
    numbers[:, :2] = torch.tensor([0.0, 1.0 - 2.0**-53])
    drawn = sample(logits, shaping, torch.arange(len(rows)).repeat_interleave(DRAWS), numbers.flatten())
    expected = [drawn_by_order(logits[place], numbers[place].tolist(), *row.params) for place, row in enumerate(rows)]
    assert drawn.view(-1, DRAWS).tolist() == expected


@pytest.mark.parametrize(
    ("spread", "outstanding", "min_p"),
    by_default(
        {(3.0, 0, 1e-4), (3.0, 20, 0.0), (0.5, 0, 0.0)},
        ((*kind, min_p) for kind in ((3.0, 0), (3.0, 20), (0.5, 0)) for min_p in (0.0, 1e-4)),
    ),
)
def test_most_rows_need_no_order(spread: float, outstanding: int, min_p: float) -> None:
    generator = torch.Generator().manual_seed(1)
    params = (0.8, 0, 0.95, min_p)
    row = Row(spread, 0.0, outstanding, 0.0, 0.0, params)
    logits = torch.stack([row.logits(20000, generator) for _ in range(40)])
    shaping = shaping_of([params] * 40)
    found = nuclei_of(*probabilities(logits, shaping), shaping)
    assert len(found) >= 34
    for number, one in found.items():
        assert one.ids.tolist() == kept_by_order(logits[number], *params).tolist()


def test_a_cut_that_rounding_could_move_is_left_to_the_order() -> None:
    masses = torch.tensor([0.5, 0.25, 0.125, 0.125])
    logits = masses.log()

    def kept(top_p: float) -> list[int] | None:
        found = nucleus(logits.numpy(), masses.numpy(), 1.0, top_p)
        return None if found is None else found.ids.tolist()

    assert kept(0.75) is None and kept(0.75 + DOUBT / 2) is None and kept(0.75 - DOUBT / 2) is None
    assert kept(0.75 - 2 * DOUBT) == [0, 1]
    assert kept(0.75 + 2 * DOUBT) == [0, 1, 2]
    assert kept(1.0 - 2 * DOUBT) == [0, 1, 2, 3]
    assert kept(1.0 - DOUBT / 2) is None and kept(1e-300) == [0]
