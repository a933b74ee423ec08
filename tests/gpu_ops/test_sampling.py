# SPDX-License-Identifier: Apache-2.0
"""Draws follow the distribution they claim, counted over evenly spread numbers."""

import pytest
import torch

from pontil.gpu_ops.sampling import greedy, sample

DRAWS = 20000


def draws(logits: list[float], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> torch.Tensor:
    """How often each id was drawn, with evenly spread numbers in place of random ones: exact up to one draw an id."""
    rows = torch.tensor(logits).expand(DRAWS, -1)
    full = torch.full((DRAWS,), 1.0, dtype=torch.float64)
    numbers = (torch.arange(DRAWS, dtype=torch.float64) + 0.5) / DRAWS
    ids = sample(rows, full * temperature, torch.full((DRAWS,), top_k), full * top_p, numbers)
    return torch.bincount(ids, minlength=len(logits))


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_temperature(temperature: float) -> None:
    logits = [0.5, -1.0, 2.0, 0.0, -3.0]
    expected = torch.softmax(torch.tensor(logits) / temperature, 0) * DRAWS
    assert (draws(logits, temperature) - expected).abs().max() <= 1.5


def test_top_k_keeps_the_k_highest_and_of_equal_ones_the_lowest_ids() -> None:
    counts = draws([1.0, 3.0, 1.0, 1.0, 2.0], top_k=3)
    assert (counts > 0).tolist() == [True, True, False, False, True]


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().tolist()
    assert (draws(logits, top_p=0.79) > 0).tolist() == [True, True, False, False]
    assert (draws(logits, top_p=0.81) > 0).tolist() == [True, True, True, False]
    assert (draws(logits, top_p=1e-9) > 0).tolist() == [True, False, False, False]
    kept = draws(logits, top_p=0.79)
    assert kept[0] / DRAWS == pytest.approx(0.625, abs=1e-3)


def test_the_last_number_below_one_stays_inside_the_kept_set() -> None:
    logits = torch.randn(4, 50000, generator=torch.Generator().manual_seed(0))
    one = torch.ones(4, dtype=torch.float64)
    ids = sample(logits, one, torch.tensor([1, 5, 0, 0]), one * 0.9, one * (1 - 2.0**-53))
    ranks = (logits > logits.gather(1, ids.unsqueeze(1))).sum(1)
    assert ranks[0] == 0 and ranks[1] < 5


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    assert greedy(torch.tensor([[1.0, 4.0, 4.0], [0.0, 0.0, 0.0]])).tolist() == [1, 0]
