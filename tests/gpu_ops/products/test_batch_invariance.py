# SPDX-License-Identifier: Apache-2.0
"""Classes of row counts are found where they hold and not where they do not (C16)."""

import pytest
import torch
from torch import Tensor

from pontil.gpu_ops.products import linear
from pontil.gpu_ops.products.batch_invariance import PROMPT_ROWS, BatchInvariance, measure, same_on_one_thread
from pontil.gpu_ops.products.linear import Linear


class Moody(Linear):
    """A product that takes another path for some row counts, as libraries do."""

    def __init__(self, weight: Tensor, odd: set[int]) -> None:
        super().__init__(weight)
        self.odd = odd

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) + (1.0 if len(x) in self.odd else 0.0)

    def twin(self, weight: Tensor) -> Linear:
        return Moody(weight, self.odd)


class Reordered(Linear):
    """A product that adds its terms from the other end for one row count: the same sum, except for rounding."""

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) != 5:
            return super().__call__(x)
        halves = zip(x.float().chunk(2, 1), self.weight.float().chunk(2, 1), strict=True)
        first, second = (part @ weight.T for part, weight in halves)
        total: Tensor = second + first
        return total.to(x.dtype)

    def twin(self, weight: Tensor) -> Linear:
        return Reordered(weight)


WEIGHT = torch.randn(24, 16, generator=torch.Generator().manual_seed(1))


def test_finds_the_floor_below_which_bits_differ() -> None:
    steady = Linear(WEIGHT)
    floor = measure([steady], [steady])
    moody = measure([steady, Moody(WEIGHT, {9, 64, 192})], [steady, Moody(WEIGHT, {20})])
    assert moody == BatchInvariance(generated=max(10, floor.generated), head=21, prompt=(128, 256))


def test_falls_back_to_one_fixed_tile() -> None:
    every = Moody(WEIGHT, set(range(PROMPT_ROWS)) - {32})
    classes = measure([every], [every])
    assert classes == BatchInvariance(32, 32, (PROMPT_ROWS,))
    assert classes.pad_generated(1) == 32 and classes.pad_prompt(1) == PROMPT_ROWS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_notices_another_order_of_addition(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "can_pack", lambda weight: False)
    reordered = Reordered(torch.randn(96, 512).to(dtype))
    assert measure([reordered], [reordered]).generated >= 6


def test_padding_goes_up_to_the_next_size() -> None:
    classes = BatchInvariance(generated=4, head=2, prompt=(64, 256))
    assert [classes.pad_prompt(rows) for rows in (1, 64, 65, 256)] == [64, 64, 256, 256]
    assert [classes.pad_generated(rows) for rows in (1, 4, 31)] == [4, 4, 31]
    assert classes.pad_head(1) == 2


class Crowded(Linear):
    """A product whose threads each add a share of the terms."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) + (1.0 if torch.get_num_threads() > 1 else 0.0)

    def twin(self, weight: Tensor) -> Linear:
        return Crowded(weight)


def test_notices_results_that_depend_on_the_number_of_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert not same_on_one_thread([Crowded(WEIGHT)], [Linear(WEIGHT)])
        assert not same_on_one_thread([Linear(WEIGHT)], [Crowded(WEIGHT)])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert same_on_one_thread([Linear(WEIGHT)], [Linear(WEIGHT)])
