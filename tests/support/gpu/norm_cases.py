# SPDX-License-Identifier: Apache-2.0
"""Norms."""

import torch
from ladder import Budget, KernelCase, Results

from pontil.gpu_ops import norm as reference
from pontil.gpu_ops.triton import norm


def numbers(rows: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(rows * 1000 + size)
    return torch.randn(rows, size, generator=draw), torch.randn(size, generator=draw)


def plain(rows: int, size: int, dtype: torch.dtype) -> KernelCase:
    def call(device: torch.device) -> Results:
        x, weight = (one.to(device) for one in numbers(rows, size))
        return (norm.rms_norm(x, weight, 1e-5, dtype),)

    def expected() -> Results:
        return (reference.rms_norm(*numbers(rows, size), 1e-5, dtype),)

    tolerance = 1e-6 if dtype == torch.float32 else 8e-3
    return KernelCase(f"rms_norm-{rows}x{size}-{dtype}".replace("torch.", ""), call, expected, tolerance, Budget(128))


CASES = [
    plain(3, 64, torch.float32),
    plain(2, 576, torch.bfloat16),
    plain(1, 4096, torch.bfloat16),
]
