# SPDX-License-Identifier: Apache-2.0
"""Draws follow the distribution of their parameters, and each row depends on itself alone."""

from typing import Any

import pytest
import torch
import transformers
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pontil.gpu_ops.draws.sampling import NARROW, Shaping, greedy, sample

DRAWS = 20000


def shaping(rows: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Shaping:
    def full(value: float) -> Tensor:
        return torch.full((rows,), value, dtype=torch.float64)

    return Shaping(full(temperature), torch.full((rows,), top_k), full(top_p), full(min_p))


def draws(logits: list[float] | Tensor, **settings: Any) -> Tensor:
    """The number of draws of each id, with evenly spread numbers in place of random ones: exact up to one draw an
    id."""
    row = torch.as_tensor(logits)
    numbers = (torch.arange(DRAWS, dtype=torch.float64) + 0.5) / DRAWS
    ids = sample(row.unsqueeze(0), shaping(1, **settings), torch.zeros(DRAWS, dtype=torch.int64), numbers)
    return torch.bincount(ids, minlength=len(row))


def random_logits(rows: int, vocabulary: int, seed: int, spread: float = 3.0) -> Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * spread


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_temperature(temperature: float) -> None:
    logits = [0.5, -1.0, 2.0, 0.0, -3.0]
    expected = torch.softmax(torch.tensor(logits) / temperature, 0) * DRAWS
    assert (draws(logits, temperature=temperature) - expected).abs().max() <= 1.5


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-46, 7e-46, 1e-45, 1e-38, 1e-30])
def test_a_temperature_next_to_zero_is_greedy(temperature: float) -> None:
    assert draws([1.0, 1.00001, -5.0], temperature=temperature).tolist() == [0, DRAWS, 0]
    assert draws([-torch.inf, 0.0, -torch.inf], temperature=temperature).tolist() == [0, DRAWS, 0]
    assert draws([1.0, 1.00001, -5.0], temperature=temperature, top_p=0.9, min_p=0.1).tolist() == [0, DRAWS, 0]


def test_top_k_keeps_the_k_highest_and_of_equal_ones_the_lowest_ids() -> None:
    counts = draws([1.0, 3.0, 1.0, 1.0, 2.0], top_k=3)
    assert (counts > 0).tolist() == [True, True, False, False, True]


def test_logits_too_close_for_their_probabilities_are_still_in_order() -> None:
    close = [5.0, 5.0000005, 1.0]
    assert draws(close, top_k=1, temperature=2.0).tolist() == [0, DRAWS, 0]
    assert draws(close, top_p=1e-3, temperature=2.0).tolist() == [0, DRAWS, 0]


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert (draws(logits, top_p=0.79) > 0).tolist() == [True, True, False, False]
    assert (draws(logits, top_p=0.81) > 0).tolist() == [True, True, True, False]
    assert (draws(logits, top_p=1e-9) > 0).tolist() == [True, False, False, False]
    assert draws(logits, top_p=0.79)[0] / DRAWS == pytest.approx(0.625, abs=1e-3)


def test_min_p_keeps_what_is_not_too_far_below_the_best() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert (draws(logits, min_p=0.59) > 0).tolist() == [True, True, False, False]
    assert (draws(logits, min_p=0.61) > 0).tolist() == [True, False, False, False]
    # Temperature comes first: it makes the other ids likelier.
    assert (draws(logits, min_p=0.61, temperature=2.0) > 0).tolist() == [True, True, False, False]
    assert (draws([1.0, 2.0, 2.0], min_p=1.0) > 0).tolist() == [False, True, True]


@pytest.mark.parametrize("number", [0.0, 1 - 2.0**-53])
@pytest.mark.parametrize("cut", [{}, {"top_k": 1}, {"top_k": 200}, {"top_p": 0.9}, {"min_p": 0.3}], ids=str)
def test_the_ends_of_the_range_of_numbers_stay_inside_the_kept_set(number: float, cut: dict[str, Any]) -> None:
    logits = random_logits(1, 50001, 0)
    logits[0, [0, -1]] = -torch.inf
    (drawn,) = sample(logits, shaping(1, **cut), torch.tensor([0]), torch.tensor([number], dtype=torch.float64))
    kept = warped(logits, **cut)[0]
    assert torch.isfinite(kept[drawn])


def warped(logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Tensor:
    """The logits as transformers cuts them, in our order: minus infinity for ids that may not be drawn."""
    steps: list[Any] = [transformers.TemperatureLogitsWarper(temperature)] if temperature != 1.0 else []
    steps += [transformers.MinPLogitsWarper(min_p)] if min_p else []
    steps += [transformers.TopKLogitsWarper(top_k)] if top_k else []
    steps += [transformers.TopPLogitsWarper(top_p)] if top_p < 1.0 else []
    for step in steps:
        logits = step(None, logits)
    return logits


CUTS: list[dict[str, Any]] = [
    {}, {"temperature": 0.5}, {"top_k": 1}, {"top_k": 7}, {"top_k": NARROW}, {"top_k": NARROW + 1}, {"top_k": 999999},
    {"top_p": 0.5}, {"top_p": 0.95}, {"min_p": 0.05}, {"min_p": 0.3, "temperature": 1.7},
    {"top_k": 40, "top_p": 0.9}, {"top_k": 300, "top_p": 0.8, "temperature": 1.5},
    {"top_k": 12, "min_p": 0.02, "top_p": 0.97, "temperature": 0.8}, {"min_p": 0.01, "top_p": 0.9},
]  # fmt: skip


@pytest.mark.parametrize("vocabulary", [50, 1000])
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_distributions_are_those_of_transformers(cut: dict[str, Any], vocabulary: int) -> None:
    logits = random_logits(1, vocabulary, 3)
    if cut.get("top_k", 0) >= vocabulary:
        cut = cut | {"top_k": vocabulary}
    expected = torch.softmax(warped(logits, **cut)[0].double(), -1) * DRAWS
    counts = draws(logits[0], **cut)
    assert (counts - expected).abs().max() <= 1.5
    assert not counts[expected == 0].any()


def chi_square(counts: Tensor, expected: Tensor) -> tuple[float, float]:
    """The statistic over cells that expect at least 5 draws, the rest pooled, and its bound at a chance of 1e-4."""
    large = expected >= 5
    cells = torch.cat([expected[large], expected[~large].sum().reshape(1)])
    seen = torch.cat([counts[large].double(), counts[~large].sum().reshape(1).double()])
    cells, seen = cells[cells > 0], seen[cells > 0]
    freedom = max(1, len(cells) - 1)
    # Wilson and Hilferty's approximation of the quantile.
    bound = freedom * (1 - 2 / (9 * freedom) + 3.719 * (2 / (9 * freedom)) ** 0.5) ** 3
    return float(((seen - cells) ** 2 / cells).sum()), bound


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_random_numbers_give_the_distribution(cut: dict[str, Any]) -> None:
    logits = random_logits(1, 400, 5)
    cut = cut | ({"top_k": 400} if cut.get("top_k", 0) > 400 else {})
    numbers = torch.rand(DRAWS, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    ids = sample(logits, shaping(1, **cut), torch.zeros(DRAWS, dtype=torch.int64), numbers)
    expected = torch.softmax(warped(logits, **cut)[0].double(), -1) * DRAWS
    counts = torch.bincount(ids, minlength=400)
    assert not counts[expected == 0].any()
    statistic, bound = chi_square(counts, expected)
    assert statistic < bound


def mixed(rows: int, seed: int) -> Shaping:
    generator = torch.Generator().manual_seed(seed)

    def some(neutral: float, low: float, high: float) -> Tensor:
        value = low + (high - low) * torch.rand(rows, generator=generator, dtype=torch.float64)
        return torch.where(torch.rand(rows, generator=generator) < 0.5, value, neutral)

    top_k = torch.where(
        torch.rand(rows, generator=generator) < 0.5, torch.randint(1, 300, (rows,), generator=generator), 0
    )
    return Shaping(some(1.0, 0.1, 2.0), top_k, some(1.0, 0.1, 1.0), some(0.0, 0.0, 0.5))


@settings(max_examples=examples(30, 60), deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([5, 97, 1001, 4096, 20011]), st.integers(2, 33), st.booleans())
def test_a_row_depends_on_itself_alone(seed: int, vocabulary: int, rows: int, coarse: bool) -> None:
    """In a batch, alone, in another order and as one of several draws; with many ties too (`coarse`)."""
    logits = random_logits(rows, vocabulary, seed)
    logits = logits.round() if coarse else logits
    shaped = mixed(rows, seed)
    numbers = torch.rand(rows, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    together = sample(logits, shaped, torch.arange(rows), numbers)
    for row in (0, rows // 2, rows - 1):
        one = torch.tensor([row])
        assert sample(logits[one], shaped.rows(one), torch.tensor([0]), numbers[one]) == together[row]
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    again = sample(logits[order], shaped.rows(order), torch.arange(rows), numbers[order])
    assert torch.equal(again, together[order])
    several = sample(logits, shaped, torch.arange(rows).repeat(2), numbers.repeat(2))
    assert torch.equal(several, together.repeat(2))


def test_a_logit_raised_by_all_alike_changes_nothing() -> None:
    logits = random_logits(8, 500, 1).round()
    shaped, numbers = mixed(8, 2), torch.rand(8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rows = torch.arange(8)
    assert torch.equal(sample(logits, shaped, rows, numbers), sample(logits + 64, shaped, rows, numbers))


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    assert greedy(torch.tensor([[1.0, 4.0, 4.0], [0.0, 0.0, 0.0]])).tolist() == [1, 0]


INFINITE: list[tuple[list[float], set[int]]] = [
    ([torch.inf, 3.0, torch.inf, -torch.inf], {0, 2}),
    ([-torch.inf, -torch.inf, 5.0, -torch.inf], {2}),
    ([torch.nan, 1.0, -torch.inf, torch.nan], {1}),
    ([torch.nan, torch.inf, 1.0, -torch.inf], {1}),
    ([torch.nan, -torch.inf, torch.nan, -torch.inf], {0, 1, 2, 3}),
    ([-torch.inf] * 4, {0, 1, 2, 3}),
    ([3.4e38, -3.4e38, 3.4e38, 1e-45], {0, 2}),
    ([1e-45, 0.0, -1e-45, -torch.inf], {0, 1, 2}),
]


@pytest.mark.parametrize(("logits", "possible"), INFINITE, ids=str)
@pytest.mark.parametrize(
    "cut", [{}, {"top_k": 2}, {"top_p": 0.999}, {"min_p": 1e-9}, {"top_k": 3, "top_p": 1e-9}], ids=str
)
def test_what_is_infinite_or_no_number_breaks_no_mask(
    logits: list[float], possible: set[int], cut: dict[str, Any]
) -> None:
    counts = draws(logits, **cut)
    assert counts.sum() == DRAWS and set(counts.nonzero().flatten().tolist()) <= possible
    assert greedy(torch.tensor([logits, logits])).tolist() == [min(best(logits))] * 2


def best(logits: list[float]) -> list[int]:
    known = [-torch.inf if value != value else value for value in logits]
    return [place for place, value in enumerate(known) if value == max(known)]


EXTREME = st.one_of(
    st.floats(width=32, allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -0.0, 1e-45, -1e-45, 1.1e-38, 3.4e38, -3.4e38, torch.inf, -torch.inf, torch.nan]),
    st.floats(-20, 20, width=32),
)
TINY = st.one_of(st.sampled_from([5e-324, 1e-310, 7e-46, 1e-45, 1e-38, 1e-5, 1.0]), st.floats(5e-324, 1.0))


@settings(max_examples=examples(30, 150), deadline=None)
@given(
    st.lists(st.lists(EXTREME, min_size=7, max_size=7), min_size=2, max_size=5),
    TINY, st.integers(0, 9), TINY, st.just(0.0) | TINY, st.floats(0, 1, exclude_max=True),
)  # fmt: skip
def test_whatever_the_numbers_a_draw_is_possible_and_its_own_rows_affair(
    rows: list[list[float]], temperature: float, top_k: int, top_p: float, min_p: float, number: float
) -> None:
    logits, count = torch.tensor(rows), len(rows)
    shaped = shaping(count, 2 * temperature, top_k, top_p, min_p)
    numbers = torch.full((count,), number, dtype=torch.float64)
    together = sample(logits, shaped, torch.arange(count), numbers)
    for row, values in enumerate(rows):
        one = torch.tensor([row])
        assert sample(logits[one], shaped.rows(one), torch.tensor([0]), numbers[one]) == together[row]
        finite = [place for place, value in enumerate(values) if value > -torch.inf]
        infinite = [place for place, value in enumerate(values) if value == torch.inf]
        assert int(together[row]) in (infinite or finite or range(7))
        assert int(greedy(logits)[row]) == min(best(values))
