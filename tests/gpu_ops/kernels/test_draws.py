# SPDX-License-Identifier: Apache-2.0
"""Draws with the kernels are those of torch's operations, to the bit, for every instruction set."""

from functools import partial

import pytest
import torch
from effort import by_default, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pontil.gpu_ops.draws.nucleus import DOUBT
from pontil.gpu_ops.draws.sampling import UNIT, Shaping, lowest_by_min_p, probabilities, sample
from pontil.gpu_ops.kernels.draws import draw_rows
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.parameters.draws import DrawnRows

DRAWS = 40
MOST = 1.0 - 2.0**-53


def shaping_of(params: list[tuple[float, int, float, float]]) -> Shaping:
    temperature, top_k, top_p, min_p = (list(values) for values in zip(*params, strict=True))

    def exact(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    return Shaping(exact(temperature), torch.tensor(top_k), exact(top_p), exact(min_p))


def drawn_with(library: KernelLibrary, logits: Tensor, shaping: Shaping, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """The ids that the kernels draw with `numbers` from every row, [rows, numbers], and the rows that are certain."""
    finite, highest, masses = probabilities(logits, shaping)
    rows, count = len(logits), len(numbers)
    floors, tried = lowest_by_min_p(highest, shaping), torch.ones(rows, dtype=torch.bool)
    drawn = DrawnRows(finite, masses, floors, shaping.top_p, tried, DOUBT)
    ids, certain = draw_rows(library, drawn, torch.arange(rows).repeat_interleave(count), numbers.repeat(rows))
    return ids.view(rows, count), certain


PARAMS = st.tuples(
    st.sampled_from([0.01, 0.8, 1.0, 5.0]) | st.floats(0.01, 5.0),
    st.sampled_from([0, 0, 0, 0, 5, 200]),
    st.sampled_from([1.0, MOST, 1.0 - DOUBT, 1.0 - 1e-6, 0.95, 0.5, 1e-7, 1e-300, 5e-324]) | st.floats(5e-324, 1.0),
    st.sampled_from([0.0, 0.0, 0.0, 1e-9, 0.02, 1.0]),
)
ROWS = st.tuples(
    st.sampled_from([0.0, 1e-6, 1e-3, 0.5, 3.0, 20.0]),
    st.sampled_from([0.0, 0.0, 0.25, 2.0]),
    st.sampled_from([0, 0, 3, 30]),
    st.sampled_from([-torch.inf, torch.inf, torch.nan, 0.0, -0.0, 3.4e38, -3.4e38]),
    st.sampled_from([0.0, 0.0, 0.001, 0.5, 1.0]),
)


def logits_of(row: tuple[float, float, int, float, float], vocabulary: int, generator: torch.Generator) -> Tensor:
    """[vocabulary]: of some spread, perhaps with ties, outstanding ids, and odd numbers."""
    spread, grain, outstanding, odd, odds = row
    logits = torch.randn(vocabulary, generator=generator) * spread
    if grain:
        logits = (logits / grain).round() * grain
    logits[torch.randint(0, vocabulary, (outstanding,), generator=generator)] += 4 * spread
    return torch.where(torch.rand(vocabulary, generator=generator) < odds, odd, logits)


# C16
@settings(max_examples=examples(15, 1000), deadline=None)
@given(
    st.lists(st.tuples(ROWS, PARAMS), min_size=1, max_size=7), st.sampled_from([1, 2, 17, 97, 257, 5000, 49152]),
    st.integers(0, 10**6), st.booleans(),
)  # fmt: skip
def test_draws_are_those_of_torch_in_any_company(
    library: KernelLibrary, rows: list[tuple[tuple[float, float, int, float, float], tuple[float, int, float, float]]],
    vocabulary: int, seed: int, padded: bool,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    logits = torch.stack([logits_of(row, vocabulary, generator) for row, _ in rows])
    if padded:
        logits = torch.nn.functional.pad(logits, (0, 32), value=1e30)[:, :vocabulary]
    shaping, number_of_row = shaping_of([params for _, params in rows]), torch.arange(len(rows)).repeat(DRAWS)
    numbers = torch.rand(len(number_of_row), generator=generator, dtype=torch.float64)
    numbers[: 2 * len(rows)] = torch.tensor([0.0, MOST]).double().repeat_interleave(len(rows))
    expected = sample(logits, shaping, number_of_row, numbers)
    assert torch.equal(sample(logits, shaping, number_of_row, numbers, partial(draw_rows, library)), expected)
    draws = partial(draw_rows, library)
    last = number_of_row == len(rows) - 1
    alone = sample(logits[-1:], shaping.rows(slice(-1, None)), number_of_row[last] * 0, numbers[last], draws)
    assert torch.equal(alone, expected[last])


NUCLEUS, WHOLE, BOTH, BY_MIN_P = (0.8, 0, 0.95, 0.0), (0.8, 0, 1.0, 0.0), (0.8, 0, 0.9, 1e-4), (1.0, 0, 1.0, 0.02)


@pytest.mark.parametrize(
    ("params", "spread", "outstanding"),
    by_default(
        {(NUCLEUS, 3.0, 20), (WHOLE, 0.5, 0), (BOTH, 3.0, 0), (BY_MIN_P, 3.0, 20)},
        ((params, *kind) for params in (NUCLEUS, WHOLE, BOTH, BY_MIN_P) for kind in ((3.0, 0), (3.0, 20), (0.5, 0))),
    ),
)
def test_most_rows_need_no_order(
    library: KernelLibrary, params: tuple[float, int, float, float], spread: float, outstanding: int
) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.stack([logits_of((spread, 0.0, outstanding, 0.0, 0.0), 20000, generator) for _ in range(40)])
    shaping, numbers = shaping_of([params] * 40), torch.rand(DRAWS, dtype=torch.float64, generator=generator)
    ids, certain = drawn_with(library, logits, shaping, numbers)
    assert int(certain.sum()) >= (40 if params[2] == 1.0 else 34)
    expected = sample(logits, shaping, torch.arange(40).repeat_interleave(DRAWS), numbers.repeat(40)).view(40, DRAWS)
    assert torch.equal(ids[certain], expected[certain])


def test_a_cut_that_rounding_could_move_is_left_to_the_order(library: KernelLibrary) -> None:
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()
    numbers = (torch.arange(64, dtype=torch.float64) + 0.5) / 64

    def kept(top_p: float) -> list[int] | None:
        ids, certain = drawn_with(library, logits, shaping_of([(1.0, 0, top_p, 0.0)]), numbers)
        return ids.unique().tolist() if certain else None

    assert kept(0.75) is None and kept(0.75 + DOUBT / 2) is None and kept(0.75 - DOUBT / 2) is None
    assert kept(0.75 - 2 * DOUBT) == [0, 1]
    assert kept(0.75 + 2 * DOUBT) == [0, 1, 2]
    assert kept(1.0 - 2 * DOUBT) == [0, 1, 2, 3]
    assert kept(1.0 - DOUBT / 2) is None and kept(1e-300) == [0]


def test_a_number_on_the_border_of_two_ids_draws_the_later_one(library: KernelLibrary) -> None:
    """Every border of a row, and the numbers next to it."""
    logits = torch.randn(1, 700, generator=torch.Generator().manual_seed(3))
    shaping = shaping_of([(1.0, 0, 1.0, 0.0)])
    cumulative = (probabilities(logits, shaping)[2][0] * UNIT).long().cumsum(0).double()
    borders = cumulative[:-1] / cumulative[-1]
    zero = torch.zeros(1, dtype=torch.float64)
    numbers = torch.cat([borders, borders.nextafter(zero), borders.nextafter(zero + 1)])
    ids, _ = drawn_with(library, logits, shaping, numbers)
    expected = sample(logits, shaping, torch.zeros(len(numbers), dtype=torch.int64), numbers)
    assert torch.equal(ids[0], expected)
    assert int(ids.max()) == 699
