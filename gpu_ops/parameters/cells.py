# SPDX-License-Identifier: Apache-2.0
"""Cells of a KV pool: keys and values in the model's type, or in 8 bits with scales.

In 8 bits the numbers of one head of a position share a scale, a float32 whose bytes follow them, so that they are
`scale * cell`. The largest of them becomes the largest cell. A cell is a whole number (torch.int8) or has four bits of
exponent and three of mantissa (torch.float8_e4m3fn, as in "FP8 Formats for Deep Learning", Micikevicius et al., 2022).
A row's cells depend on that row only.
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
