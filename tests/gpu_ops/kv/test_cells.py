# SPDX-License-Identifier: Apache-2.0
"""Keys and values in 8 bits: the bounds of what rounding changes, for any numbers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pontil.gpu_ops.kv.cells import decode, encode, scales_of
from pontil.gpu_ops.parameters.cells import LARGEST, SCALE_BYTES, head_dim_of

EIGHT_BITS = list(LARGEST)
DIM = 16
# Far from where a scale or a product would be subnormal.
NUMBERS = st.floats(-(2.0**99), 2.0**99, width=32).filter(lambda x: x == 0 or abs(x) > 1e-29)


@st.composite
def tables(draw: st.DrawFn) -> Tensor:
    rows = draw(st.integers(1, 4))
    numbers = draw(st.lists(NUMBERS, min_size=rows * DIM, max_size=rows * DIM))
    return torch.tensor(numbers, dtype=torch.float32).view(rows, DIM)


@given(x=tables())
def test_whole_numbers_are_off_by_half_a_step_at_most(x: Tensor) -> None:
    found = decode(encode(x, torch.int8))
    step = x.abs().amax(-1, keepdim=True) / 127
    assert bool(((found - x).abs() <= step * 0.5001).all())


@given(x=tables())
def test_floats_keep_four_significant_bits_or_a_step_of_the_smallest(x: Tensor) -> None:
    found = decode(encode(x, torch.float8_e4m3fn))
    smallest = x.abs().amax(-1, keepdim=True) / 448 * 2**-9
    assert bool(((found - x).abs() <= torch.maximum(x.abs() / 16, smallest / 2) * 1.001).all())


@pytest.mark.parametrize("dtype", EIGHT_BITS, ids=str)
@given(x=tables())
def test_the_largest_number_is_kept_and_so_is_every_row_by_itself(dtype: torch.dtype, x: Tensor) -> None:
    cells = encode(x, dtype)
    assert cells.shape == (len(x), DIM + SCALE_BYTES) and cells.dtype == dtype and head_dim_of(cells) == DIM
    found = decode(cells)
    torch.testing.assert_close(found.abs().amax(-1), x.abs().amax(-1), rtol=1e-6, atol=0)
    for row, one in zip(x, found, strict=True):
        assert torch.equal(decode(encode(row, dtype)), one)


@pytest.mark.parametrize("dtype", EIGHT_BITS, ids=str)
def test_cells_survive_another_round(dtype: torch.dtype) -> None:
    """Rounding what was stored once more changes nothing but the scale's last bits."""
    x = torch.randn(50, 64, generator=torch.Generator().manual_seed(1))
    once = decode(encode(x, dtype))
    torch.testing.assert_close(decode(encode(once, dtype)), once, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", EIGHT_BITS, ids=str)
def test_zeros_are_exact_and_what_is_no_number_stays_none(dtype: torch.dtype) -> None:
    assert not decode(encode(torch.zeros(2, DIM), dtype)).any()
    assert bool((decode(encode(torch.full((2, DIM), 1e-37), dtype)) == 0).all())
    for bad in (torch.nan, torch.inf, -torch.inf):
        x = torch.ones(2, DIM)
        x[0, 3] = bad
        found = decode(encode(x, dtype))
        assert not torch.isfinite(found[0]).any() and bool((found[1] == 1).all())
        assert not torch.isfinite(scales_of(x, dtype)[0]).any()


def test_cells_of_the_models_type_are_the_numbers() -> None:
    x = torch.randn(3, DIM)
    assert torch.equal(encode(x, torch.bfloat16), x.bfloat16()) and head_dim_of(x) == DIM
    assert torch.equal(decode(x.bfloat16()), x.bfloat16().float())
