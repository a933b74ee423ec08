# SPDX-License-Identifier: Apache-2.0
"""Draws of ids from rows of probabilities, and the highest logits of rows, with the kernels."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.weights.structures import DrawFields
from pontil.gpu_ops.parameters.draws import DrawnRows


def draw_rows(kernels: KernelLibrary, rows: DrawnRows, row: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Draw from rows number `row`, int64 [draws], with the numbers `uniform`, float64 [draws]: the ids, int64 [draws],
    and the rows that were drawn from, bool [rows]."""
    logits = rows.logits if rows.logits.stride(1) == 1 else rows.logits.contiguous()
    masses, floors, top_p = rows.masses.contiguous(), rows.floors.contiguous(), rows.top_p.contiguous()
    ends = torch.bincount(row, minlength=len(logits)).cumsum(0)
    order = row.argsort(stable=True)
    numbers, ids, certain = uniform[order], torch.zeros_like(row), rows.tried.clone()
    tensors = (logits, masses, floors, top_p, numbers, ends, ids, certain)
    addresses = (tensor.data_ptr() for tensor in tensors)
    kernels.draw(DrawFields(*addresses, rows.doubt, logits.stride(0), *logits.shape))
    tokens = torch.empty_like(row)
    tokens[order] = ids
    return tokens, certain


def top_logits(
    kernels: KernelLibrary, logits: Tensor, rows: Sequence[int], count: int, groups: Tensor | None = None
) -> Tensor:
    """Return of these rows what `gpu_ops.draws.top_logits` does, sooner where the highest logits of all `groups` are
    known (RankedRows)."""
    pairs = torch.empty(len(rows), count, 2, dtype=torch.int32)
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    kernels.top_logits(logits, groups, (ctypes.c_int32 * len(rows))(*rows), pairs)
    return pairs
