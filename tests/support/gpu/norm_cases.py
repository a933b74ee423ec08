# SPDX-License-Identifier: Apache-2.0
"""Norms."""

import torch
from ladder import Budget, KernelCase, Results

from pontil.gpu_ops import norm as reference
from pontil.gpu_ops.triton import norm


def numbers(rows: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(rows * 1000 + size)
    return torch.randn(rows, size, generator=draw), torch.randn(size, generator=draw)


def tolerance(dtype: torch.dtype) -> float:
    return 1e-6 if dtype == torch.float32 else 8e-3


def plain(rows: int, size: int, dtype: torch.dtype) -> KernelCase:
    def call(device: torch.device) -> Results:
        x, weight = (one.to(device) for one in numbers(rows, size))
        return (norm.rms_norm(x, weight, 1e-5, dtype),)

    def expected() -> Results:
        return (reference.rms_norm(*numbers(rows, size), 1e-5, dtype),)

    return KernelCase(
        f"rms_norm-{rows}x{size}-{dtype}".replace("torch.", ""), call, expected, tolerance(dtype), Budget(128)
    )


def heads(dtype: torch.dtype) -> KernelCase:
    """Some heads of rows that have others beside them."""

    def some(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = numbers(3, 5 * 24)
        return x.to(dtype).view(3, 5, 24)[:, 1:4].to(device), weight[:24].to(device)

    def call(device: torch.device) -> Results:
        return (norm.rms_norm(*some(device), 1e-5, dtype),)

    def expected() -> Results:
        return (reference.rms_norm(*some(torch.device("cpu")), 1e-5, dtype),)

    name = f"rms_norm-heads-{dtype}".replace("torch.", "")
    return KernelCase(name, call, expected, tolerance(dtype), compiled=False)


def added(rows: int, size: int, addend: torch.dtype, dtype: torch.dtype) -> KernelCase:
    def some(device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x, weight = numbers(rows, size)
        return x.to(device), x.flip(1).to(addend).to(device), weight.to(device)

    def call(device: torch.device) -> Results:
        return norm.add_rms_norm(*some(device), 1e-5, dtype)

    def expected() -> Results:
        return reference.add_rms_norm(*some(torch.device("cpu")), 1e-5, dtype)

    name = f"add_rms_norm-{rows}x{size}-{addend}-{dtype}".replace("torch.", "")
    return KernelCase(name, call, expected, tolerance(dtype), Budget(128))


CASES = [
    plain(3, 64, torch.float32),
    plain(2, 576, torch.bfloat16),
    plain(1, 4096, torch.bfloat16),
    heads(torch.float16),
    added(3, 72, torch.float32, torch.float32),
    added(2, 4096, torch.bfloat16, torch.bfloat16),
]
