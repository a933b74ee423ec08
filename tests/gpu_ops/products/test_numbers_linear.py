# SPDX-License-Identifier: Apache-2.0
"""Rows float32 times weights of 16 bits, as the sum of two products of 16 bits."""

import pytest
import torch

from pontil.gpu_ops.products.linear import NumbersLinear, added_halves, halves


def drawn(*size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))


def difference(made: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> float:
    expected = x.double() @ weight.double().T
    return float((made - expected).abs().max() / expected.abs().max())


def test_two_halves_are_nearly_as_exact_as_float32_and_one_is_not() -> None:
    x, weight = drawn(5, 300), drawn(40, 300).bfloat16()
    both = halves(x, torch.bfloat16)
    assert both.dtype == torch.bfloat16 and both.shape == (10, 300)
    made = both.float() @ weight.float().T
    # Rows that are only rounded differ by a hundred times as much.
    assert difference(made[:5], x, weight) > 1e-3
    total = added_halves(made)
    assert difference(total, x, weight) < 2e-5
    assert total.untyped_storage().nbytes() == total.nbytes, "the halves live no longer than they must"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: torch has this product on GPUs only")
def test_the_library_computes_it() -> None:
    x, weight = drawn(5, 300).cuda(), drawn(40, 300).bfloat16().cuda()
    assert difference(NumbersLinear(weight)(x), x, weight) < 2e-5
