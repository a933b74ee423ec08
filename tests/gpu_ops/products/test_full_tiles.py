# SPDX-License-Identifier: Apache-2.0
"""Products of full tiles have the same bits for any number of rows (C16)."""

import pytest
import torch

from pontil.gpu_ops.products.batch_invariance import GENERATED_ROWS
from pontil.gpu_ops.products.full_tiles import in_full_tiles
from pontil.gpu_ops.products.linear import Linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bits_of_a_row_beside_any_others(dtype: torch.dtype) -> None:
    # With so many inputs, oneDNN computes a single row differently from several.
    generator = torch.Generator().manual_seed(1)
    linear = Linear(torch.randn(64, 2048, generator=generator).to(dtype))
    x = torch.randn(3 * GENERATED_ROWS + 5, 2048, generator=generator).to(dtype)
    together = in_full_tiles(linear, x)
    assert together.shape == (len(x), 64)
    for start, end in ((0, 1), (7, 8), (9, 11), (20, 70), (len(x), len(x))):
        assert torch.equal(in_full_tiles(linear, x[start:end]), together[start:end])


def test_the_function_sees_full_tiles_only() -> None:
    seen: list[int] = []

    def twice(x: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return 2 * x

    x = torch.arange(2.0 * GENERATED_ROWS + 2).view(-1, 2)
    assert torch.equal(in_full_tiles(twice, x), 2 * x) and seen == [GENERATED_ROWS] * 2
