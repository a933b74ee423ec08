# SPDX-License-Identifier: Apache-2.0
"""A mixture's experts, their products grouped: rows are put in the order of their experts by counting on the device,
and every tile of rows has one expert. There are as many programs as any choice could need; those without rows end at
once. So nothing is read by the host, and nothing depends on the choice but the work."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from pontil.gpu_ops.triton.activation import CLAMPED, SILU, activated
from pontil.gpu_ops.triton.device_weights import PLAIN, DeviceWeights
from pontil.gpu_ops.triton.launch import WIDE, ceil_div, in_rows, launch, power_of_2
from pontil.gpu_ops.triton.products import (
    BLOCK_RANK,
    HEAD_FIELDS,
    PART_FIELDS,
    TileShape,
    group_of,
    matrix_at,
    multiplied,
    numbers_at,
)

Options = dict[str, int]
# Programs that share the ranks of a tile of rows.
SHARES = 2
# Choices that a program reads at a time, and columns that one adds.
CHOICES, COLUMNS = 1024, 1024


@triton.jit(do_not_specialize=("total",))
def sort_kernel(chosen, order, starts, total, first, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """One program for each expert: the places of its choices, ascending, behind those of all earlier experts."""
    expert = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    begin = 0
    for at in range(0, total, BLOCK):
        number = tl.load(chosen + at + place, mask=at + place < total, other=-1).to(tl.int32) - first
        here = (at + place < total) & (number >= 0) & (number < expert)
        begin += tl.sum(here.to(tl.int32), 0)
    tl.store(starts + expert, begin)
    for at in range(0, total, BLOCK):
        number = tl.load(chosen + at + place, mask=at + place < total, other=-1).to(tl.int32) - first
        mine = (at + place < total) & (number == expert)
        tl.store(order + begin + tl.cumsum(mine.to(tl.int32), 0) - 1, at + place, mask=mine)
        begin += tl.sum(mine.to(tl.int32), 0)
    if expert == COUNT - 1:
        tl.store(starts + COUNT, begin)


@triton.jit
def rows_of(starts, tile, COUNT: tl.constexpr, BLOCK_COUNT: tl.constexpr, BLOCK_M: tl.constexpr):
    """The expert of a tile and the first of its sorted rows; with COUNT or more there is no such tile."""
    expert = tl.arange(0, BLOCK_COUNT)
    begin = tl.load(starts + expert, mask=expert < COUNT, other=0)
    end = tl.load(starts + expert + 1, mask=expert < COUNT, other=0)
    tiles = (end - begin + BLOCK_M - 1) // BLOCK_M
    # Experts behind the last one have no tiles, so that this counts all of them where there are too few tiles.
    mine = tl.sum((tl.cumsum(tiles, 0) <= tile).to(tl.int32), 0)
    earlier = tl.sum(tl.where(expert < mine, tiles, 0), 0)
    start = tl.sum(tl.where(expert == mine, begin, 0), 0)
    return mine, start + (tile - earlier) * BLOCK_M


@triton.jit
def shrink_rows(
    own, rows, x, table, sums, expert, place, INPUTS: tl.constexpr, FIELDS: tl.constexpr, WIDTH: tl.constexpr,
    SHARES: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Multiply the rows of a tile of one expert with the first matrices of their `own` adapters, [BLOCK_M], less than 0
    for a row without one: with those of one number after the other, all rows of the tile with each. The second axis of
    programs shares the ranks."""
    number = tl.max(own, 0)
    while number >= 0:
        mine = own == number
        fields = table + number.to(tl.int64) * FIELDS
        ranks = tl.load(fields + 1).to(tl.int32)
        down = matrix_at(tl.load(fields), x) + expert.to(tl.int64) * ranks * INPUTS
        for first in range(tl.program_id(1) * BLOCK_R, ranks, SHARES * BLOCK_R):
            r = first + tl.arange(0, BLOCK_R)
            total = tl.zeros((BLOCK_M, BLOCK_R), tl.float32)
            for start in range(0, INPUTS, BLOCK_K):
                k = start + tl.arange(0, BLOCK_K)
                some = numbers_at(rows[:, None] + k[None, :], k, INPUTS, BLOCK_K)
                matrix = numbers_at(down + r[:, None] * INPUTS + k[None, :], k, INPUTS, BLOCK_K)
                if WIDE:
                    some, matrix = some.to(tl.float32), matrix.to(tl.float32)
                total = tl.dot(some, tl.trans(matrix), total, input_precision="ieee")
            tl.store(sums + place.to(tl.int64)[:, None] * WIDTH + r[None, :], total, mask=mine[:, None])
        own = tl.where(mine, -1, own)
        number = tl.max(own, 0)


@triton.jit
def expanded(
    own, sums, table, like, expert, place, n, SIZE: tl.constexpr, PART: tl.constexpr, FIELDS: tl.constexpr,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """The sums of a tile of one expert times the second matrices of its rows' `own` adapters, as `shrink_rows` takes
    them, for the outputs n of a part of SIZE outputs: float32 [BLOCK_M, BLOCK_N]."""
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    number = tl.max(own, 0)
    while number >= 0:
        mine = own == number
        fields = table + number.to(tl.int64) * FIELDS + HEAD_FIELDS + PART * PART_FIELDS
        rank, rank_first = tl.load(fields + 1).to(tl.int32), tl.load(fields + 2).to(tl.int32)
        up = matrix_at(tl.load(fields), like) + expert.to(tl.int64) * rank * SIZE
        made = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        # Few turns, which are not worth the registers of a pipeline.
        for first in tl.range(0, rank, BLOCK_R, num_stages=1):
            r = first + tl.arange(0, BLOCK_R)
            some = tl.load(
                sums + place.to(tl.int64)[:, None] * WIDTH + (rank_first + r)[None, :], mask=mine[:, None], other=0.0
            )
            matrix = tl.load(up + n[:, None] * rank + r[None, :])
            some = some.to(matrix.dtype)
            if WIDE:
                some, matrix = some.to(tl.float32), matrix.to(tl.float32)
            made = tl.dot(some, tl.trans(matrix), made, input_precision="ieee")
        total += tl.where(mine[:, None], made, 0.0)
        own = tl.where(mine, -1, own)
        number = tl.max(own, 0)
    return total


@triton.jit
def shrink_experts_kernel(
    x, order, starts, numbers, table, sums, x_row, INPUTS: tl.constexpr, PER_TOKEN: tl.constexpr, COUNT: tl.constexpr,
    BLOCK_COUNT: tl.constexpr, OF_CHOICES: tl.constexpr, FIELDS: tl.constexpr, WIDTH: tl.constexpr,
    SHARES: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Sums float32 [sorted choices, WIDTH] of rows, or of what sorted choices have become, times the first matrices of
    their adapters for their experts."""
    expert, begin = rows_of(starts, tl.program_id(0), COUNT, BLOCK_COUNT, BLOCK_M)
    if expert >= COUNT:
        return
    end = tl.load(starts + expert + 1)
    place = begin + tl.arange(0, BLOCK_M)
    present = tl.minimum(place, end - 1)
    row = tl.load(order + present) // PER_TOKEN
    own = tl.where(place < end, tl.load(numbers + row), -1)
    rows = x + (present if OF_CHOICES else row).to(tl.int64) * x_row
    shrink_rows(
        own, rows, x, table, sums, expert, place, INPUTS, FIELDS, WIDTH, SHARES, WIDE, BLOCK_M, BLOCK_R, BLOCK_K
    )


@triton.jit
def gate_up_kernel(
    x, w, scales, bias, order, starts, numbers, table, sums, out, x_row, w_expert, w_out, w_in, scale_expert,
    scale_out, bias_expert, alpha, limit,
    SIZE: tl.constexpr, INPUTS: tl.constexpr, PER_TOKEN: tl.constexpr, COUNT: tl.constexpr, BLOCK_COUNT: tl.constexpr,
    KIND: tl.constexpr, GROUP: tl.constexpr, BIASED: tl.constexpr, ACTIVATION: tl.constexpr,
    FIELDS: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    expert, begin = rows_of(starts, tl.program_id(0), COUNT, BLOCK_COUNT, BLOCK_M)
    if expert >= COUNT:
        return
    end = tl.load(starts + expert + 1)
    place = begin + tl.arange(0, BLOCK_M)
    row = tl.load(order + tl.minimum(place, end - 1)) // PER_TOKEN
    rows = x + row.to(tl.int64) * x_row
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    valid_n = tl.minimum(n, SIZE - 1).to(tl.int64)
    w += expert.to(tl.int64) * w_expert
    scales += expert.to(tl.int64) * scale_expert
    gate = multiplied(
        rows, w, scales, valid_n, w_out, w_in, scale_out, INPUTS, KIND, GROUP, WIDE, BLOCK_M, BLOCK_N, BLOCK_K
    )
    up = multiplied(
        rows, w, scales, valid_n + SIZE, w_out, w_in, scale_out, INPUTS, KIND, GROUP, WIDE, BLOCK_M, BLOCK_N, BLOCK_K
    )
    if BIASED:
        bias += expert * bias_expert
        gate += tl.load(bias + valid_n).to(tl.float32)[None, :]
        up += tl.load(bias + SIZE + valid_n).to(tl.float32)[None, :]
    if FIELDS:
        own = tl.where(place < end, tl.load(numbers + row), -1)
        gate += expanded(own, sums, table, x, expert, place, valid_n, SIZE, 0, FIELDS, WIDTH, WIDE, BLOCK_M, BLOCK_N,
                         BLOCK_R)  # fmt: skip
        up += expanded(own, sums, table, x, expert, place, valid_n, SIZE, 1, FIELDS, WIDTH, WIDE, BLOCK_M, BLOCK_N,
                       BLOCK_R)  # fmt: skip
    activations = activated(gate, up, alpha, limit, ACTIVATION)
    places = out + place.to(tl.int64)[:, None] * SIZE + n[None, :]
    tl.store(places, activations.to(out.dtype.element_ty), mask=(place < end)[:, None] & (n < SIZE)[None, :])


@triton.jit
def down_kernel(
    x, w, scales, bias, order, starts, numbers, table, sums, out, w_expert, w_out, w_in, scale_expert, scale_out,
    bias_expert, SIZE: tl.constexpr, INPUTS: tl.constexpr, PER_TOKEN: tl.constexpr, COUNT: tl.constexpr,
    BLOCK_COUNT: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr, BIASED: tl.constexpr, FIELDS: tl.constexpr,
    WIDTH: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    expert, begin = rows_of(starts, tl.program_id(0), COUNT, BLOCK_COUNT, BLOCK_M)
    if expert >= COUNT:
        return
    end = tl.load(starts + expert + 1)
    place = begin + tl.arange(0, BLOCK_M)
    present = tl.minimum(place, end - 1)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    valid_n = tl.minimum(n, SIZE - 1).to(tl.int64)
    total = multiplied(
        x + present.to(tl.int64) * INPUTS, w + expert.to(tl.int64) * w_expert,
        scales + expert.to(tl.int64) * scale_expert, valid_n, w_out, w_in, scale_out, INPUTS,
        KIND, GROUP, WIDE, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    if BIASED:
        total += tl.load(bias + expert * bias_expert + valid_n).to(tl.float32)[None, :]
    choice = tl.load(order + present)
    if FIELDS:
        own = tl.where(place < end, tl.load(numbers + choice // PER_TOKEN), -1)
        total += expanded(own, sums, table, x, expert, place, valid_n, SIZE, 0, FIELDS, WIDTH, WIDE, BLOCK_M, BLOCK_N,
                          BLOCK_R)  # fmt: skip
    places = out + choice.to(tl.int64)[:, None] * SIZE + n[None, :]
    tl.store(places, total, mask=(place < end)[:, None] & (n < SIZE)[None, :])


@triton.jit
def add_kernel(results, ratings, out, SIZE: tl.constexpr, PER_TOKEN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for turn in range(PER_TOKEN):
        choice = row * PER_TOKEN + turn
        total += tl.load(results + choice * SIZE + place, mask=place < SIZE, other=0.0) * tl.load(ratings + choice)
    tl.store(out + row * SIZE + place, total, mask=place < SIZE)


def sort_by_expert(chosen: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """The places in `chosen` (flat, of any integers) of the experts [first, first + count), int32 [choices], ordered by
    expert and then ascending; and where each expert's begin, int32 [count + 1]. What is behind the last is not
    written."""
    total = chosen.numel()
    order = torch.empty(total, dtype=torch.int32, device=chosen.device)
    starts = torch.empty(count + 1, dtype=torch.int32, device=chosen.device)
    launch(sort_kernel, (count,), chosen, order, starts, total, first, COUNT=count, BLOCK=CHOICES, num_warps=4)
    return order, starts


@dataclass(frozen=True, slots=True)
class ExpertAdapterTable:
    """The `numbers` of the adapters of one product, as DeviceAdapters writes them, int64 [adapters, fields]: of each
    the address of the first matrices of all experts, and the number of an expert's ranks of all parts together, at
    most `most_ranks`; then of each part the address of the second matrices, their rank, and the place of that among an
    expert's ranks."""

    numbers: Tensor
    most_ranks: int


@dataclass(frozen=True, slots=True)
class TileAdapters:
    """The numbers of the adapters of rows, int32 [rows], less than 0 for a row without one, and the tables of the
    adapters of both products."""

    rows: Tensor
    gate_up: ExpertAdapterTable
    down: ExpertAdapterTable


def tile_of(dtype: torch.dtype, weights: DeviceWeights) -> TileShape:
    """The only tile for rows of this type and weights of this kind: of few rows, since experts get few, and of fewer
    outputs where weights are taken apart."""
    if dtype == torch.float32:
        return TileShape(32, 64, 32, 3)
    return TileShape(32, 64, 64, 4) if weights.kind == PLAIN else TileShape(32, 32, 64, 4)


def expert_results(
    x: Tensor,
    chosen: Tensor,
    gate_up: DeviceWeights,
    down: DeviceWeights,
    first: int,
    clamp: tuple[float, float] | None = None,
    adapters: TileAdapters | None = None,
) -> Tensor:
    """The results of gated MLPs, float32 [rows, per_token, outputs], for x [rows, inputs] and chosen [rows, per_token].
    The weights are those of the experts from `first` on, gates and ups side by side; results of other experts are not
    written. The activation is silu, or with `clamp` (its sharpness and its limit) a clamped one. The `adapters` of the
    rows add to both products."""
    x, (rows, per_token) = in_rows(x), chosen.shape
    count, size, total = len(gate_up.numbers), gate_up.outputs // 2, rows * per_token
    order, starts = sort_by_expert(chosen, first, count)
    shape = tile_of(x.dtype, gate_up)
    tiles = total // shape.rows + min(count, total)
    inner = torch.empty(total, size, dtype=x.dtype, device=x.device)
    out = torch.empty(rows, per_token, down.outputs, dtype=torch.float32, device=x.device)
    common = {
        "COUNT": count, "BLOCK_COUNT": power_of_2(count), "PER_TOKEN": per_token, "WIDE": WIDE, **shape.options,
    }  # fmt: skip

    def shrunk(
        rows_of: Tensor, table: ExpertAdapterTable | None, of_choices: bool
    ) -> tuple[tuple[Tensor, ...], Options]:
        """Start the first matrices for rows, or for sorted choices; return the arguments of a kernel about adapters."""
        if adapters is None or table is None:
            return (order, order, order), {"FIELDS": 0, "WIDTH": 0, "BLOCK_R": BLOCK_RANK}
        sums = torch.empty(total, table.most_ranks, dtype=torch.float32, device=x.device)
        sizes = {"FIELDS": table.numbers.shape[1], "WIDTH": table.most_ranks, "BLOCK_R": BLOCK_RANK}
        launch(
            shrink_experts_kernel, (tiles, SHARES), rows_of, order, starts, adapters.rows, table.numbers, sums,
            rows_of.stride(0), INPUTS=rows_of.shape[1], OF_CHOICES=of_choices, SHARES=SHARES, **sizes, **common,
        )  # fmt: skip
        return (adapters.rows, table.numbers, sums), sizes

    more, sizes = shrunk(x, None if adapters is None else adapters.gate_up, False)
    launch(
        gate_up_kernel, (tiles, ceil_div(size, shape.outputs)), x, *pointers(gate_up), order, starts, *more, inner,
        x.stride(0), *strides(gate_up), *(clamp or (0.0, 0.0)), SIZE=size, INPUTS=gate_up.inputs,
        ACTIVATION=SILU if clamp is None else CLAMPED, **kinds(gate_up), **sizes, **common,
    )  # fmt: skip
    more, sizes = shrunk(inner, None if adapters is None else adapters.down, True)
    launch(
        down_kernel, (tiles, ceil_div(down.outputs, shape.outputs)), inner, *pointers(down), order, starts, *more, out,
        *strides(down), SIZE=down.outputs, INPUTS=down.inputs, **kinds(down), **sizes, **common,
    )  # fmt: skip
    return out


def pointers(weights: DeviceWeights) -> tuple[Tensor, Tensor, Tensor]:
    words = weights.words
    dummy = words
    return (
        words,
        dummy if weights.scales is None else weights.scales,
        dummy if weights.bias is None else weights.bias,
    )


def strides(weights: DeviceWeights) -> tuple[int, ...]:
    scales, bias = weights.scales, weights.bias
    of_scales = (0, 0) if scales is None else (scales.stride(0), scales.stride(1))
    return (*weights.words.stride(), *of_scales, 0 if bias is None else bias.stride(0))


def kinds(weights: DeviceWeights) -> dict[str, int | bool]:
    return {"KIND": weights.kind, "GROUP": group_of(weights), "BIASED": weights.bias is not None}


def add_by_ratings(results: Tensor, ratings: Tensor) -> Tensor:
    """The sum over the places of results float32 [rows, per_token, size], each times its rating float32 [rows,
    per_token], added in order."""
    rows, per_token, size = results.shape
    out = torch.empty(rows, size, dtype=torch.float32, device=results.device)
    launch(
        add_kernel, (rows, ceil_div(size, COLUMNS)), results.contiguous(), ratings.contiguous(), out,
        SIZE=size, PER_TOKEN=per_token, BLOCK=COLUMNS, num_warps=4,
    )  # fmt: skip
    return out
