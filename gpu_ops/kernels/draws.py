# SPDX-License-Identifier: Apache-2.0
"""Draws of ids from rows of probabilities with the kernels."""

import torch
from torch import Tensor

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.weights.structures import DrawFields


def draw_rows(
    kernels: KernelLibrary,
    logits: Tensor,
    masses: Tensor,
    floors: Tensor,
    top_p: Tensor,
    tried: Tensor,
    row: Tensor,
    uniform: Tensor,
    doubt: float,
) -> tuple[Tensor, Tensor]:
    """Draw ids from the rows that are `tried` (bool [rows]), but where masses that are wrong by the share `doubt` of
    their sum might cut others: int64 [draws], and the rows that were drawn from, bool [rows].

    logits and masses float32 [rows, vocabulary]; floors float32 [rows, 1]: the lowest logit that min_p keeps; top_p
    float64 [rows]; row int64 and uniform float64 [draws], as `sample` takes them. The logits have no NaN and a finite
    highest number in each row.
    """
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    masses, floors, top_p, certain = masses.contiguous(), floors.contiguous(), top_p.contiguous(), tried.clone()
    ends = torch.bincount(row, minlength=len(logits)).cumsum(0)
    order = row.argsort(stable=True)
    numbers, ids = uniform[order], torch.zeros_like(row)
    owned = (logits, masses, floors, top_p, numbers, ends, ids, certain)
    addresses = (one.data_ptr() for one in owned)
    kernels.draw(DrawFields(*addresses, doubt, logits.stride(0), *logits.shape))
    drawn = torch.empty_like(row)
    drawn[order] = ids
    return drawn, certain
