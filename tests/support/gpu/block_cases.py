# SPDX-License-Identifier: Apache-2.0
"""Copies and digests of blocks."""

import torch
from ladder import Budget, KernelCase, Results
from torch import Tensor

from pontil.gpu_ops.kv import block_copies as copies_reference
from pontil.gpu_ops.kv.digest import digest_weights
from pontil.gpu_ops.triton import blocks

CPU = torch.device("cpu")
# Blocks, layers, planes, heads, slots, width.
SHAPE = (7, 2, 2, 4, 4, 24)
ALL = slice(0, 4)
SOME, OTHERS = [5, 0, 6], [2, 4, 1]


def pool(seed: int, device: torch.device, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16().to(device)


def copied(name: str, *, heads: tuple[slice, slice], packed: tuple[bool, bool], width: int = 24) -> KernelCase:
    """`heads` are those of the source and of the target that are copied, and `packed` is the side that has one block
    behind the other."""

    def some(device: torch.device) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None, Tensor]:
        source, target = (
            pool(seed, device, (*SHAPE[:3], cut.stop - cut.start if alone else 4, 4, width))
            for seed, cut, alone in zip((1, 2), heads, packed, strict=True)
        )
        places = [
            None if alone else torch.tensor(numbers, device=device)
            for alone, numbers in zip(packed, (SOME, OTHERS), strict=True)
        ]
        read = source if packed[0] else source[:, :, :, heads[0]]
        return read, places[0], target if packed[1] else target[:, :, :, heads[1]], places[1], target

    def call(device: torch.device) -> Results:
        source, sources, part, targets, target = some(device)
        blocks.copy_blocks(source, sources, part, targets, 3)
        return (target.view(torch.int16),)

    def expected() -> Results:
        source, sources, part, targets, target = some(CPU)
        copies_reference.copy_blocks(source, sources, part, targets, 3)
        return (target.view(torch.int16),)

    return KernelCase(f"blocks-copied-{name}", call, expected, 0, compiled=False)


def digested(name: str, heads: slice, slots: int = 4) -> KernelCase:
    def some(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        held = pool(3, device, (*SHAPE[:4], slots, 24))[:, :, :, heads]
        run = held.shape[3] * slots * 24 // 4
        weights = torch.from_numpy(digest_weights(4 * run, 4 * run if heads == ALL else run))
        return held, torch.tensor(SOME, device=device), weights.to(device)

    return KernelCase(
        f"blocks-digested-{name}", lambda device: (blocks.block_digests(*some(device)),),
        # Without the last step, which is not of the kernel.
        lambda: (totals(*some(CPU)),), 0, compiled=False,
    )  # fmt: skip


def totals(held: Tensor, places: Tensor, weights: Tensor) -> Tensor:
    return (held[places].flatten(1).view(torch.int64).view(len(places), len(weights), -1).sum(-1) * weights).sum(-1)


def real_size() -> KernelCase:
    def call(device: torch.device) -> Results:
        held = torch.empty(8, 32, 2, 8, 16, 128, dtype=torch.bfloat16, device=device)
        places = torch.empty(4, dtype=torch.int64, device=device)
        staging = torch.empty(4, *held.shape[1:], dtype=held.dtype, device=device)
        blocks.copy_blocks(held, places, staging, None, 4)
        weights = torch.empty(len(digest_weights(held[0].numel() // 4)), dtype=torch.int64, device=device)
        return (blocks.block_digests(held, places, weights),)

    return KernelCase("blocks-real", call, budget=Budget(128), interpreted=False)


CASES = [
    copied("pool-to-pool", heads=(ALL, ALL), packed=(False, False)),
    copied("to-packed", heads=(slice(1, 3), slice(0, 2)), packed=(False, True)),
    copied("from-packed", heads=(slice(0, 1), slice(3, 4)), packed=(True, False), width=25),
    copied("some-of-all", heads=(ALL, ALL), packed=(True, True), width=6),
    digested("whole", ALL),
    digested("heads", slice(1, 3)),
    digested("large", ALL, slots=24),
    real_size(),
]
