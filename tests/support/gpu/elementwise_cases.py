# SPDX-License-Identifier: Apache-2.0
"""Rotary positions, gated activations, and rows that are rounded to floats of 8 bits."""

from collections.abc import Callable

import torch
from ladder import Budget, KernelCase, Results
from torch import Tensor

from pontil.gpu_ops import activation as activation_reference
from pontil.gpu_ops import rotary as rotary_reference
from pontil.gpu_ops.kv.attention import write_kv
from pontil.gpu_ops.parameters.rotary import HeadTurn
from pontil.gpu_ops.products import torch_products
from pontil.gpu_ops.triton import activation, products, rotary

CPU = torch.device("cpu")


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def turned(
    name: str, heads: tuple[int, int], dim: int, rotated: int, dtype: torch.dtype, *, interleaved: bool = False,
    normed: bool = False, rows: int = 3, compiled: bool = False,
) -> KernelCase:  # fmt: skip
    queries, keys = heads

    def some(device: torch.device) -> tuple[Tensor, Tensor, HeadTurn]:
        qkv = drawn(dim, rows, queries + 2 * keys, dim).to(dtype).to(device)
        q, k, _ = qkv.split((queries, keys, keys), dim=1)
        angles = drawn(7, rows, rotated // 2).to(device)
        norms = (drawn(1, dim).to(device), drawn(2, dim).to(device), 1e-6) if normed else None
        return q, k, HeadTurn(angles.cos(), angles.sin(), interleaved, norms)

    def call(device: torch.device) -> Results:
        return rotary.turn_heads(*some(device))

    def expected() -> Results:
        return rotary_reference.turn_heads(*some(CPU))

    # With norms two roundings follow each other.
    tolerance = 1e-6 if dtype == torch.float32 else 1.6e-2 if normed else 8e-3
    return KernelCase(f"rotary-{name}", call, expected, tolerance, Budget(64), compiled=compiled)


def stored(
    name: str, heads: tuple[int, int], dim: int, rotated: int, dtype: torch.dtype, *, normed: bool = False,
    interleaved: bool = False, compiled: bool = False,
) -> KernelCase:  # fmt: skip
    """Queries that are turned, keys that are turned into a pool, and values beside them. The second row is padding."""
    queries, keys = heads
    slots = [9, -1, 3, 12]

    def some(device: torch.device) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor], HeadTurn]:
        qkv = drawn(dim, len(slots), queries + 2 * keys, dim).to(dtype).to(device)
        q, k, v = qkv.split((queries, keys, keys), dim=1)
        angles, pool = drawn(7, len(slots), rotated // 2).to(device), drawn(8, 4, 2, 2, keys, 4, dim).to(dtype)
        norms = (drawn(1, dim).to(device), drawn(2, dim).to(device), 1e-6) if normed else None
        turn = HeadTurn(angles.cos(), angles.sin(), interleaved, norms)
        return pool.to(device), torch.tensor(slots, dtype=torch.int32).to(device), (q, k, v), turn

    def call(device: torch.device) -> Results:
        pool, places, rows, turn = some(device)
        return rotary.turn_and_write(pool, 1, places, *rows, turn), pool

    def expected() -> Results:
        pool, places, (q, k, v), turn = some(CPU)
        turned, key = rotary_reference.turn_heads(q, k, turn)
        used = places >= 0
        here = places[used].long()
        write_kv(pool, 1, here // 4, here % 4, key[used], v[used])
        return turned, pool

    tolerance = 1e-6 if dtype == torch.float32 else 1.6e-2 if normed else 8e-3
    return KernelCase(f"rotary-stored-{name}", call, expected, tolerance, Budget(64), compiled=compiled)


def gated(name: str, size: int, dtype: torch.dtype, compiled: bool = False) -> KernelCase:
    def some(device: torch.device) -> Tensor:
        return (3 * drawn(size, 2, 2 * size)).to(dtype).to(device)

    kinds: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
        "silu": (lambda x: activation.gated(x, activation.SILU), activation_reference.silu_and_mul),
        "gelu": (lambda x: activation.gated(x, activation.GELU), activation_reference.gelu_and_mul),
        "clamped": (
            lambda x: activation.gated(x, activation.CLAMPED, 1.702, 2.0),
            lambda x: activation_reference.clamped_swiglu(x, 1.702, 2.0),
        ),
    }
    kernel, counterpart = kinds[name]
    # The counterpart rounds several times on the way.
    tolerance = 1e-6 if dtype == torch.float32 else 1.6e-2
    return KernelCase(
        f"gated-{name}-{size}-{dtype}".replace("torch.", ""), lambda device: (kernel(some(device)),),
        lambda: (counterpart(some(CPU)),), tolerance, Budget(64), compiled=compiled,
    )  # fmt: skip


def rounded(rows: int, inputs: int, dtype: torch.dtype = torch.bfloat16) -> KernelCase:
    """Rows of small and large numbers, to the bit: one of zeros, one of a number alone, and one with what is none."""

    def some() -> Tensor:
        made = drawn(5, rows, inputs) * torch.exp2(8 * drawn(6, rows, 1)) * torch.exp2(4 * drawn(7, rows, inputs))
        made[0], made[-1, 1:] = 0.0, 0.0
        made = made.clamp(-6e4, 6e4)
        made[1, 3] = torch.nan
        return made.to(dtype)

    def known(made: Tensor, scales: Tensor) -> Results:
        return made.view(torch.uint8).masked_fill(scales.isnan(), 0), scales

    name = f"rows-rounded-{rows}x{inputs}-{dtype}".replace("torch.", "")
    return KernelCase(
        name,
        lambda device: known(*products.round_rows(some().to(device))),
        lambda: known(*torch_products.rounded_rows(some())),
        0,
        Budget(128),
    )


CASES = [
    turned("whole", (4, 2), 16, 16, torch.float32),
    turned("part", (3, 1), 24, 8, torch.bfloat16, interleaved=True, rows=1),
    turned("normed", (2, 2), 24, 24, torch.float16, normed=True),
    turned("normed-part", (8, 2), 128, 64, torch.bfloat16, normed=True, compiled=True),
    turned("one-kind", (2, 0), 64, 64, torch.bfloat16, interleaved=True),
    stored("whole", (4, 2), 16, 16, torch.float32),
    stored("part", (3, 1), 24, 8, torch.float16, interleaved=True),
    stored("normed", (8, 2), 128, 64, torch.bfloat16, normed=True, compiled=True),
    gated("silu", 1100, torch.bfloat16, compiled=True),
    gated("gelu", 72, torch.float32),
    gated("clamped", 72, torch.float32),
    rounded(4, 4096),
    rounded(9, 72, torch.float16),
]
