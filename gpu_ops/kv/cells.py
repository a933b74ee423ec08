# SPDX-License-Identifier: Apache-2.0
"""Numbers as cells of a KV pool, and cells as numbers. Both roundings are to the nearest, ties to even."""

import torch
from torch import Tensor

from pontil.gpu_ops.parameters.cells import LARGEST, NOTHING, head_dim_of


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
