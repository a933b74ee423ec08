# SPDX-License-Identifier: Apache-2.0
"""Cells of a KV pool: keys and values in the model's type, or in 8 bits with scales.

In 8 bits the numbers of one head of a position share a scale, a float32 whose bytes follow them, so that they are
`scale * cell`. The largest of them becomes the largest cell. A cell is a whole number (torch.int8) or has four bits of
exponent and three of mantissa (torch.float8_e4m3fn, as in "FP8 Formats for Deep Learning", Micikevicius et al., 2022).
Both roundings are to the nearest, ties to even. A row's cells depend on that row only.
"""

import torch
from torch import Tensor

SCALE_BYTES = torch.float32.itemsize
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The largest cell of each type of 8 bits."""
NOTHING = 1e-30
"""Rows without a larger number are stored as zeros: the inverse of their scale might not be finite."""


def row_cells(head_dim: int, dtype: torch.dtype) -> int:
    """The cells of a row with so many numbers."""
    return head_dim + (SCALE_BYTES if dtype in LARGEST else 0)


def head_dim_of(pool: Tensor) -> int:
    """The dimensions of a head of a pool [..., cells of a row]."""
    return pool.shape[-1] - (SCALE_BYTES if pool.dtype in LARGEST else 0)


def scales_of(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The scale of each row of x float32 [..., head_dim]: float32 [..., 1]. It is not finite where the row is not."""
    return x.abs().amax(-1, keepdim=True) * (1 / LARGEST[dtype])


def encode(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows [..., head_dim] of numbers as rows of cells, with their scale behind them if the type has one."""
    if dtype not in LARGEST:
        return x.to(dtype)
    x, most = x.float(), LARGEST[dtype]
    highest = x.abs().amax(-1, keepdim=True)
    inverse = torch.where(highest > NOTHING, most / highest, 0.0)
    cells = (x * inverse).nan_to_num(0.0).clamp(-most, most)
    levels = (cells.round() if dtype == torch.int8 else cells).to(dtype).view(torch.uint8)
    return torch.cat([levels, scales_of(x, dtype).contiguous().view(torch.uint8)], dim=-1).view(dtype)


def decode(rows: Tensor) -> Tensor:
    """The numbers of rows of cells: float32 [..., head_dim], contiguous."""
    if rows.dtype not in LARGEST:
        # Convert in one pass: a conversion that kept permuted strides would be copied again.
        return rows.to(torch.float32, memory_format=torch.contiguous_format)
    dim = head_dim_of(rows)
    scales = rows[..., dim:].contiguous().view(torch.float32)
    return rows[..., :dim].to(torch.float32, memory_format=torch.contiguous_format).mul_(scales)


def movable(pool: Tensor) -> Tensor:
    """The pool as a type that every operation that moves rows takes: for 8-bit floats torch has only some."""
    return pool.view(torch.int8) if pool.dtype in LARGEST else pool
