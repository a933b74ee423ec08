# SPDX-License-Identifier: Apache-2.0
"""Latent attention by every instruction set: the reference's results, in any cutting and company (C16)."""

from dataclasses import replace

import pytest
import torch
from layer_cases import LatentCase

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.tile import KernelTile, TileSpan
from pontil.gpu_ops.kernels.weights.slots import clear_packed, unpacked
from pontil.gpu_ops.kernels.weights.structures import CELLS
from pontil.gpu_ops.kv.cells import decode

FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
CASES = {
    "float32": LatentCase(FLOAT32, query_rank=48),
    "bfloat16": LatentCase(BFLOAT16, query_rank=32, rank=64),
    "without a latent of queries": LatentCase(BFLOAT16, heads=5, value_dim=48, sandwich=True),
    # More heads than a tile of queries holds.
    "many heads": LatentCase(BFLOAT16, heads=100, rank=32, length=70),
    "many heads in float32": LatentCase(FLOAT32, heads=50, rank=32, length=70, block_size=64),
    "short blocks": LatentCase(FLOAT32, block_size=8, rank=80, key_dim=48),
    "int8": LatentCase(BFLOAT16, cells=torch.int8, rank=64, block_size=8),
    "fp8": LatentCase(FLOAT32, cells=torch.float8_e4m3fn, query_rank=16),
}
CUTS = ([1] * 20 + [30, 1, 64, 35], [149, 1])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_results_are_right_and_in_any_cutting_the_same(library: KernelLibrary, case: LatentCase) -> None:
    half = case.half(library)
    whole, expected = case.computed(half, [case.length]), case.expected()
    error = (whole - expected).norm() / (expected - case.x).norm()
    assert error < (2e-5 if case.dtype == FLOAT32 and case.cells is None else 3e-2)
    for cuts in CUTS if case.length == 150 else ([1] * 20 + [30, 1, 19],):
        assert torch.equal(case.computed(half, cuts), whole)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_threads_change_nothing(one_thread: KernelLibrary, three_threads: KernelLibrary, case: LatentCase) -> None:
    short = replace(case, length=70)
    whole = short.computed(short.half(one_thread), [70])
    for cuts in ([70], [1] * 70):
        assert torch.equal(short.computed(short.half(three_threads), cuts), whole)


def test_sequences_in_one_tile_know_nothing_of_each_other(library: KernelLibrary) -> None:
    case = LatentCase(BFLOAT16, heads=20)
    half = case.half(library)
    pools = torch.randn(40, 2, 1, 1, 16, 64, generator=torch.Generator().manual_seed(1)).bfloat16().repeat(2, *[1] * 5)
    together, apart = pools.chunk(2)
    starts, counts = (0, 139, 64, 3), (40, 1, 30, 1)
    spans = [
        TileSpan(start, count, list(range(10 * number, 10 * number + 10)))
        for number, (start, count) in enumerate(zip(starts, counts, strict=True))
    ]
    x = case.x[: sum(counts)]
    all_rows = x.clone()
    half(all_rows, KernelTile(together, spans, BFLOAT16))
    for part, once, span in zip(x.split(counts), all_rows.split(counts), spans, strict=True):
        half(part, KernelTile(apart, [span], BFLOAT16))
        assert torch.equal(part, once)
    assert torch.equal(together, apart)


@pytest.mark.parametrize("cells", [None, *CELLS])
@pytest.mark.parametrize("block_size", [8, 64])
def test_stored_latents_are_those_of_rows_that_are_attended(
    library: KernelLibrary, block_size: int, cells: torch.dtype | None
) -> None:
    """Rows that nobody looks at leave the same bytes, and unused slots can be zeroed without loss."""
    case = LatentCase(BFLOAT16, length=41, block_size=block_size, cells=cells)
    half = case.half(library)
    (pool, blocks), (other, _) = case.pool(), case.pool()
    tile = TileSpan(0, 41, blocks)
    x, rows = case.x, case.x
    half(rows, KernelTile(pool, [tile], BFLOAT16))
    assert half.store(x, KernelTile(other, [tile], BFLOAT16)) and torch.equal(x, case.x)
    assert torch.equal(pool.view(torch.uint8), other.view(torch.uint8))
    last, filled = blocks[41 // block_size], 41 % block_size
    clear_packed(pool[last], filled)
    slots = unpacked(pool[last])[1:]
    assert bool(torch.isfinite(decode(slots)).all()) and not slots.view(torch.uint8)[:, :, :, filled:].any()
    assert torch.equal(
        slots[:, :, :, :filled].view(torch.uint8), unpacked(other[last])[1:, :, :, :filled].view(torch.uint8)
    )
