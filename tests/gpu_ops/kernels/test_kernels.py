# SPDX-License-Identifier: Apache-2.0
"""Every op of every instruction set against its torch reference, over shapes; all of them are batch-invariant (C16)."""

from collections.abc import Sequence
from dataclasses import dataclass

import kernels
import pytest
import torch
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pontil.gpu_ops.draws.sampling import greedy
from pontil.gpu_ops.kernels.check import fault
from pontil.gpu_ops.kernels.layer import AttentionHalf, GatedKind, HeadShape, MlpHalf, Norms, Rotation, can_compute
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.reference import attention_half, mlp_half
from pontil.gpu_ops.kernels.tile import KernelTile, TileSpan
from pontil.gpu_ops.kernels.weights.matrix import alternate, pack
from pontil.gpu_ops.kernels.weights.slots import clear_packed, unpacked
from pontil.gpu_ops.kernels.weights.structures import BYTES, CELLS, EIGHTS, FOURS, NIBBLES, SIXES
from pontil.gpu_ops.kv.cells import decode
from pontil.gpu_ops.norm import rms_norm
from pontil.gpu_ops.parameters.attention import LayerAttention
from pontil.gpu_ops.parameters.cells import row_cells
from pontil.gpu_ops.rotary import rotary_frequencies, rotary_table

DTYPES = (torch.float32, torch.bfloat16)
TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 3e-2}
LAYERS = 2


@pytest.fixture(scope="module")
def library(any_kernels: KernelLibrary) -> KernelLibrary:
    return any_kernels


@dataclass(frozen=True)
class Case:
    """A random layer. `cuts`: the rows of each tile, in order."""

    dtype: torch.dtype
    shape: HeadShape
    hidden: int
    inner: int
    length: int
    window: int | None
    block_size: int
    cuts: tuple[int, ...]
    sandwich: bool
    head_norms: bool
    bias: bool
    gelu: bool
    cells: torch.dtype | None = None

    def random(self, seed: int, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))

    def weight(self, seed: int, *shape: int) -> Tensor:
        scale: float = shape[-1] ** -0.5
        return (self.random(seed, *shape) * scale).to(self.dtype)

    @property
    def norms(self) -> Norms:
        dim = self.shape.head_dim
        after = self.random(12, self.hidden) if self.sandwich else None
        heads = [self.random(seed, dim) if self.head_norms else None for seed in (13, 14)]
        return Norms(1e-5, self.random(11, self.hidden), after, *heads)

    @property
    def qkv(self) -> tuple[Tensor, Tensor | None, Tensor]:
        queries, keys = (count * self.shape.head_dim for count in (self.shape.heads, self.shape.kv_heads))
        bias = self.weight(2, queries + 2 * keys) if self.bias else None
        return self.weight(1, queries + 2 * keys, self.hidden), bias, self.weight(3, self.hidden, queries)

    @property
    def mlp(self) -> tuple[Tensor, Tensor, Tensor]:
        sizes = ((self.inner, self.hidden), (self.inner, self.hidden), (self.hidden, self.inner))
        return self.weight(4, *sizes[0]), self.weight(5, *sizes[1]), self.weight(6, *sizes[2])

    @property
    def angles(self) -> tuple[Tensor, Tensor]:
        return rotary_table(rotary_frequencies(self.shape.head_dim, 1e4), self.length)

    @property
    def x(self) -> Tensor:
        return self.random(7, self.length, self.hidden)

    @property
    def layer(self) -> LayerAttention:
        return LayerAttention(1, self.shape.head_dim**-0.5, self.window)

    def expected(self) -> tuple[Tensor, Tensor]:
        """The expected x after each half."""
        x = self.x
        cells = self.cells or self.dtype
        attended = attention_half(x, self.qkv, self.norms, self.angles, self.shape, self.layer, cells)
        return attended, mlp_half(x, self.mlp, self.norms, self.gelu)

    def computed(self, library: KernelLibrary, cuts: Sequence[int]) -> tuple[Tensor, Tensor]:
        qkv, bias, out = self.qkv
        gate, up, down = self.mlp
        attention = AttentionHalf(
            library,
            pack(qkv, bias),
            pack(out),
            self.norms,
            Rotation(*self.angles),
            self.shape,
            self.layer,
        )
        mlp = MlpHalf(library, pack(alternate(gate, up)), pack(down), self.norms, GatedKind(self.gelu))
        count = -(-self.length // self.block_size)
        blocks = (torch.randperm(count + 3, generator=torch.Generator().manual_seed(8)) + 1)[:count].tolist()
        cells = self.cells or self.dtype
        row = row_cells(self.shape.head_dim, cells)
        pool = torch.empty(count + 4, LAYERS, 2, self.shape.kv_heads, self.block_size, row, dtype=cells)
        # NaN in every type, as a number and as a scale.
        pool.view(torch.uint8).fill_(255)
        attended, made, start = self.x, self.x, 0
        for part in attended.split(list(cuts)):
            attention(part, KernelTile(pool, [TileSpan(start, len(part), blocks)], self.dtype))
            start += len(part)
        for part in made.split(list(cuts)):
            mlp(part, part)
        return attended, made


@st.composite
def cases(draw: st.DrawFn) -> Case:
    dtype = draw(st.sampled_from(DTYPES))
    kv_heads, group = draw(st.sampled_from([(1, 1), (1, 7), (2, 3), (3, 1), (1, 48), (2, 4)]))
    head_dim = draw(st.sampled_from([16, 32, 48, 64, 80, 96, 128, 256]))
    shape = HeadShape(kv_heads * group, kv_heads, head_dim)
    hidden, inner = (16 * draw(st.integers(1, 9)) for _ in range(2))
    length = draw(st.integers(1, 150))
    cuts, left = [], length
    while left:
        cuts.append(draw(st.integers(1, left)))
        left -= cuts[-1]
    window = draw(st.one_of(st.none(), st.integers(1, 160)))
    sandwich, head_norms, bias, gelu = (draw(st.booleans()) for _ in range(4))
    block_size, cells = draw(st.sampled_from([8, 16, 32, 64])), draw(st.sampled_from([None, *CELLS]))
    return Case(
        dtype, shape, hidden, inner, length, window, block_size, tuple(cuts), sandwich, head_norms, bias, gelu, cells
    )


@settings(deadline=None, max_examples=examples(9, 15))
@given(case=cases())
def test_halves_are_right_and_in_any_cutting_the_same(library: KernelLibrary, case: Case) -> None:
    whole = case.computed(library, [case.length])
    for found, expected in zip(whole, case.expected(), strict=True):
        error = (found - expected).norm() / (expected - case.x).norm()
        assert error < (TOLERANCES[case.dtype] if case.cells is None else TOLERANCES[torch.bfloat16])
    for cuts in (case.cuts, [1] * case.length):
        for found, once in zip(case.computed(library, cuts), whole, strict=True):
            assert torch.equal(found, once)


@settings(deadline=None, max_examples=10)
@given(case=cases())
def test_threads_change_nothing(three_threads: KernelLibrary, case: Case) -> None:
    alone = kernels.opened()
    try:
        for found, once in zip(
            case.computed(three_threads, case.cuts), case.computed(alone, [case.length]), strict=True
        ):
            assert torch.equal(found, once)
    finally:
        alone.close()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_linear_in_any_company(library: KernelLibrary, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    weight, bias = torch.randn(77, 176, generator=generator).to(dtype), torch.randn(77, generator=generator)
    x = torch.randn(300, 176, generator=generator)
    matrix = pack(weight, bias)
    whole = library.linear(matrix, x)
    expected = x.to(dtype).double() @ weight.double().T + bias.double()
    torch.testing.assert_close(whole.double(), expected, atol=1e-3, rtol=1e-5)
    for rows in (*range(1, 40), 119, 120, 121, 250):
        assert torch.equal(library.linear(matrix, x[:rows]), whole[:rows])
        assert torch.equal(library.linear(matrix, x[-rows:]), whole[-rows:])


@pytest.mark.parametrize("outputs", [64, 77, 33])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_head_norms_and_finds_the_highest(library: KernelLibrary, dtype: torch.dtype, outputs: int) -> None:
    """The highest is the reference's greedy choice, of equal ones the first, and never padding of the outputs."""
    generator = torch.Generator().manual_seed(outputs)
    weight, norm = torch.randn(outputs, 96, generator=generator).to(dtype), torch.rand(96, generator=generator) + 0.5
    weight[-1] = weight[outputs // 2] = weight[outputs // 3]
    x = torch.randn(70, 96, generator=generator)
    x[0], x[1] = 3 * weight[outputs // 3].float() / norm, 0
    # Every logit of this row is below zero.
    weight[:, 5], x[2] = 1, 0
    x[2, 5] = -1
    matrix = pack(weight)
    logits, ranked = library.head(matrix, x, norm, 1e-6)
    highest = ranked.highest
    expected = rms_norm(x, norm, 1e-6, dtype).double() @ weight.double().T
    torch.testing.assert_close(logits.double(), expected, atol=0.2 if dtype == torch.bfloat16 else 1e-4, rtol=1e-2)
    assert torch.equal(highest, greedy(logits)) and highest[0] == outputs // 3 and logits[2].max() < 0
    for rows in (1, 2, 13, 40):
        some, top = library.head(matrix, x[:rows], norm, 1e-6)
        assert torch.equal(some, logits[:rows]) and torch.equal(top.highest, highest[:rows])


def test_sequences_in_one_tile_know_nothing_of_each_other(library: KernelLibrary) -> None:
    """Prompts and single positions of several sequences in one tile, as a step has them."""
    case = Case(torch.bfloat16, HeadShape(6, 2, 64), 96, 64, 140, 50, 16, (140,), False, True, False, False)
    qkv, bias, out = case.qkv
    layer = LayerAttention(0, 0.1, case.window)
    half = AttentionHalf(library, pack(qkv), pack(out), case.norms, Rotation(*case.angles), case.shape, layer)
    starts, counts = (0, 139, 64, 3), (90, 1, 30, 1)
    pool = torch.randn(60, 1, 2, 2, 16, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    tables = [list(range(1 + 12 * number, 13 + 12 * number)) for number in range(4)]
    spans = [TileSpan(start, count, own) for start, count, own in zip(starts, counts, tables, strict=True)]
    x = case.random(9, sum(counts), 96)
    together, own_pool = x.clone(), pool.clone()
    half(together, KernelTile(own_pool, spans, case.dtype))
    for part, once, span in zip(x.split(counts), together.split(counts), spans, strict=True):
        half(part, KernelTile(pool, [span], case.dtype))
        assert torch.equal(part, once)
    assert torch.equal(pool, own_pool)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_nobody_looks_at_leave_the_same_keys_and_values(
    library: KernelLibrary, dtype: torch.dtype, bias: bool
) -> None:
    case = Case(dtype, HeadShape(6, 2, 48), 64, 32, 40, 9, 16, (40,), False, True, bias, False)
    qkv, out_bias, out = case.qkv
    matrices, layer = (pack(qkv, out_bias), pack(out)), LayerAttention(1, 0.2, 9)
    half = AttentionHalf(library, *matrices, case.norms, Rotation(*case.angles), case.shape, layer)
    pools = torch.zeros(2, 8, LAYERS, 2, 2, 16, 48, dtype=dtype)
    spans = [TileSpan(3, 20, [2, 1]), TileSpan(17, 4, [5, 4])]
    x, rows = case.x[:24], [0, 18, 19, 20, 22]
    whole = x.clone()
    half(whole, KernelTile(pools[0], spans, dtype))
    tile, some = KernelTile(pools[1], spans, dtype), x[rows]
    assert [(one.start, one.count) for one in tile.only(rows).spans] == [(3, 1), (21, 2), (17, 1), (19, 1)]
    assert half.store(x, tile)
    half(some, tile.only(rows))
    assert torch.equal(some, whole[rows]) and torch.equal(*pools)
    narrow = Case(dtype, HeadShape(1, 1, 16), 64, 32, 4, None, 16, (4,), False, False, False, False)
    qkv, _, out = narrow.qkv
    half = AttentionHalf(
        library,
        pack(qkv),
        pack(out),
        narrow.norms,
        Rotation(*narrow.angles),
        narrow.shape,
        LayerAttention(0, 1.0),
    )
    pool = torch.zeros(2, 1, 2, 1, 16, 16, dtype=dtype)
    assert not half.store(narrow.x, KernelTile(pool, [TileSpan(0, 4, [1])], dtype))


@pytest.mark.parametrize(("dtype", "cells"), [*((one, one) for one in DTYPES), *((DTYPES[1], one) for one in CELLS)])
@pytest.mark.parametrize("block_size", [8, 16, 64])
def test_unused_slots_can_be_zeroed_and_nothing_is_lost(
    library: KernelLibrary, block_size: int, dtype: torch.dtype, cells: torch.dtype
) -> None:
    case = Case(dtype, HeadShape(4, 2, 32), 32, 32, 40, None, block_size, (40,), False, False, False, False)
    qkv, _, out = case.qkv
    half = AttentionHalf(
        library,
        pack(qkv),
        pack(out),
        case.norms,
        Rotation(*case.angles),
        case.shape,
        LayerAttention(0, 0.2),
    )
    blocks = list(range(-(-40 // block_size)))
    pool = torch.empty(len(blocks), 1, 2, 2, block_size, row_cells(32, cells), dtype=cells)
    pool.view(torch.uint8).fill_(255)
    x = case.x
    for start, end in ((0, 21), (21, 22), (22, 40)):
        half(x[start:end], KernelTile(pool, [TileSpan(start, end - start, blocks)], dtype))
        last, filled = divmod(end, block_size)
        if filled:
            clear_packed(pool[last], filled)
            slots = unpacked(pool[last])
            assert bool(torch.isfinite(decode(slots)).all()) and not slots.view(torch.uint8)[:, :, :, filled:].any()
    whole = case.x
    half(whole, KernelTile(torch.zeros_like(pool), [TileSpan(0, 40, blocks)], dtype))
    assert torch.equal(x, whole)


def test_extreme_scores_stay_numbers(library: KernelLibrary) -> None:
    """Keys that are thousands away from each other, and rows that see one key only."""
    case = Case(torch.float32, HeadShape(2, 1, 32), 32, 32, 130, 1, 16, (130,), False, False, False, False)
    assert all(bool(torch.isfinite(one).all()) for one in case.computed(library, [130]))
    qkv, _, out = case.qkv
    half = AttentionHalf(
        library,
        pack(qkv * 300),
        pack(out),
        case.norms,
        Rotation(*case.angles),
        case.shape,
        LayerAttention(0, 1.0),
    )
    x = case.x
    half(x, KernelTile(torch.zeros(12, 1, 2, 1, 16, 32), [TileSpan(0, 130, list(range(1, 10)))], case.dtype))
    assert bool(torch.isfinite(x).all())


def test_the_self_check_notices_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    library = kernels.opened()
    assert fault(library) is None
    right = library.mlp_half
    monkeypatch.setattr(library, "mlp_half", lambda fields, x, result: right(fields, x + 1, result))
    assert "is off by" in str(fault(library))
    monkeypatch.setattr(library, "mlp_half", lambda fields, x, result: right(fields, x + len(x) * 1e-7, result))
    assert "depend on the others" in str(fault(library))
    library.close()


@pytest.mark.parametrize("kind", [NIBBLES, BYTES, EIGHTS, FOURS, SIXES])
def test_the_self_check_notices_a_wrong_product_of_whole_numbers(monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    library = kernels.opened()
    right = library.linear
    monkeypatch.setattr(library, "linear", lambda matrix, x: right(matrix, x) * (1.01 if matrix.kind == kind else 1))
    assert "is off by" in str(fault(library))
    wrong = 1 + 1e-6
    monkeypatch.setattr(library, "linear", lambda m, x: right(m, x) * (wrong if m.kind == kind and len(x) == 1 else 1))
    assert "depend on the others" in str(fault(library))
    library.close()


def test_what_the_kernels_take() -> None:
    assert can_compute(torch.bfloat16, 64, 576, 1536) and can_compute(torch.float32)
    assert not can_compute(torch.float16, 576) and not can_compute(torch.bfloat16, 64, 600)
