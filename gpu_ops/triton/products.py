# SPDX-License-Identifier: Apache-2.0
"""Products with a weight by tiles of one fixed size, which add in one fixed order: a row's bits do not depend on how
many others there are, nor on its place among them. Weights of 8 and 4 bits become numbers as they are read."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from pontil.gpu_ops.triton.device_weights import FLOAT4_GROUP, DeviceWeights
from pontil.gpu_ops.triton.launch import WIDE, ceil_div, in_rows, launch, power_of_2

# Neighbouring programs share rows of this many tiles, so that both sides of their products stay in a cache.
SWATH: tl.constexpr = tl.constexpr(16)
# Rows up to which a tile is low, so that most of a program is reading weights, and from which it is large.
FEW_ROWS, MANY_ROWS = 32, 256


# The number of times that a float of 8 bits (e4m3) is its bits as those of a float16.
FLOAT8_SHARE: tl.constexpr = tl.constexpr(256.0)
LARGEST_FLOAT8: tl.constexpr = tl.constexpr(448.0)
# The bits of the exponent of the smallest float of 8 bits with all its bits behind the first.
LEAST_EXPONENT: tl.constexpr = tl.constexpr(127 - 6)
NO_FRACTION: tl.constexpr = tl.constexpr(1.5 * 2.0**23)
SMALLEST: tl.constexpr = tl.constexpr(1e-12)
# Fields of a part, and those before the first part, in an adapter's row of a table (products/device_adapters.py).
PART_FIELDS: tl.constexpr = tl.constexpr(3)
HEAD_FIELDS: tl.constexpr = tl.constexpr(2)
# Ranks are padded to a multiple of this: a program multiplies so many of them at a time.
BLOCK_RANK = 16


@triton.jit
def share_of_float8(bits):
    """Floats of 8 bits (e4m3) as float16, divided by FLOAT8_SHARE: their bits, moved, are a float16 of a smaller
    exponent. NaN does not occur."""
    wide = bits.to(tl.uint16)
    half = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    return half.to(tl.float16, bitcast=True)


@triton.jit
def from_float8(bits):
    """Floats of 8 bits (e4m3) as float32."""
    return share_of_float8(bits).to(tl.float32) * FLOAT8_SHARE


@triton.jit
def to_float8(numbers):
    """Numbers float32 of at most 448 as floats of 8 bits (e4m3), rounded to the nearest, of two as near the even one.
    The step between neighbours follows from the exponent."""
    bits = numbers.to(tl.int32, bitcast=True)
    exponents = tl.maximum((bits >> 23) & 0xFF, LEAST_EXPONENT)
    step = ((exponents - 3) << 23).to(tl.float32, bitcast=True)
    # A sum with so large a number has no fraction.
    whole = (numbers / step + NO_FRACTION) - NO_FRACTION
    half = (whole * step / FLOAT8_SHARE).to(tl.float16).to(tl.uint16, bitcast=True)
    return ((bits >> 24) & 0x80 | (half >> 7) & 0x7F).to(tl.uint8)


@triton.jit
def round_rows_kernel(x, out, scales, x_row, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row, place = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    numbers = tl.load(x + row * x_row + place, mask=place < SIZE, other=0.0).to(tl.float32)
    # A row with a number that is none has a scale that is none.
    largest = tl.maximum(tl.max(tl.abs(numbers), 0), SMALLEST) + tl.sum(numbers * 0.0, 0)
    scale = tl.div_rn(largest, LARGEST_FLOAT8)
    tl.store(scales + row, scale)
    tl.store(out + row * SIZE + place, to_float8(tl.div_rn(numbers, scale)), mask=place < SIZE)


def round_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [rows, inputs] of 16 bits as floats of 8 bits, whose largest one is the largest there is, and the scale of
    each row, float32 [rows, 1]."""
    (rows, size), x = x.shape, in_rows(x)
    out = torch.empty(rows, size, dtype=torch.uint8, device=x.device)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    block = power_of_2(size)
    launch(
        round_rows_kernel,
        (rows,),
        x,
        out,
        scales,
        x.stride(0),
        SIZE=size,
        BLOCK=block,
        num_warps=min(16, max(1, block // 512)),
    )
    return out.view(torch.float8_e4m3fn), scales


@triton.jit
def from_float4(bits):
    """Floats of 4 bits (e2m1) as float32, in the same way."""
    wide = bits.to(tl.uint16)
    half = ((wide & 8) << 12) | ((wide & 7) << 9)
    return half.to(tl.float16, bitcast=True).to(tl.float32) * 16384.0


@triton.jit
def power_of_exponent(exponents):
    """Two to the power of exponents minus 127."""
    bits = exponents.to(tl.int32)
    return tl.where(bits == 0, 0x00400000, bits << 23).to(tl.float32, bitcast=True)


@triton.jit
def numbers_at(places, k, end: tl.constexpr, STEP: tl.constexpr):
    """Numbers of which the first `end` along the last axis exist, [..., k], and 0 instead of others. Nothing is
    compared where whole steps come out even."""
    if end % STEP == 0:
        return tl.load(places)
    else:
        return tl.load(places, mask=(k < end)[None, :], other=0)


@triton.jit
def matrix_at(address, like):
    """A pointer to numbers of the same type as those of `like`. Every matrix begins at a multiple of 16 bytes."""
    return tl.multiple_of(address, 16).to(tl.pointer_type(like.dtype.element_ty))


@triton.jit
def factor_tile(
    factors, n, start, stride, INPUTS: tl.constexpr, GROUP: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """The factors of groups of inputs, for weights of outputs `n` and BLOCK_K inputs from `start` on: [BLOCK_N,
    BLOCK_K], or [BLOCK_N, 1] where all have one; 0 behind the last input."""
    if GROUP % BLOCK_K == 0:
        return tl.load(factors + n * stride + start // GROUP)[:, None]
    elif BLOCK_K % GROUP == 0:
        groups = start // GROUP + tl.arange(0, BLOCK_K // GROUP)
        own = numbers_at(factors + n[:, None] * stride + groups[None, :], groups * GROUP, INPUTS, BLOCK_K)
        own = tl.broadcast_to(own[:, :, None], (BLOCK_N, BLOCK_K // GROUP, GROUP))
        return tl.reshape(own, (BLOCK_N, BLOCK_K))
    else:
        k = start + tl.arange(0, BLOCK_K)
        return numbers_at(factors + n[:, None] * stride + (k // GROUP)[None, :], k, INPUTS, BLOCK_K)


@triton.jit
def numbers_of_table(words, n, stride, bits):
    """The numbers, signed bytes of an output's 4 `words`, that stand at the places `bits` [BLOCK_N, BLOCK_K]. No memory
    is looked up for a number: the words of an output are in registers."""
    own = words + n * stride
    first, second = tl.load(own)[:, None], tl.load(own + 1)[:, None]
    third, fourth = tl.load(own + 2)[:, None], tl.load(own + 3)[:, None]
    place = bits.to(tl.int32)
    word = tl.where(place < 8, tl.where(place < 4, first, second), tl.where(place < 12, third, fourth))
    return word << (24 - 8 * (place & 3)) >> 24


@triton.jit
def weight_tile(
    w, scales, n, start, w_out, w_in, scale_out,
    INPUTS: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Weights of outputs `n` and of BLOCK_K inputs from `start` on, [BLOCK_N, BLOCK_K]; 0 behind the last input."""
    k = start + tl.arange(0, BLOCK_K)
    if KIND == 0:
        return numbers_at(w + n[:, None] * w_out + k[None, :] * w_in, k, INPUTS, BLOCK_K)
    elif KIND == 1:
        numbers = from_float8(numbers_at(w + n[:, None] * w_out + k[None, :] * w_in, k, INPUTS, BLOCK_K))
        return numbers * factor_tile(scales, n, start, scale_out, INPUTS, GROUP, BLOCK_N, BLOCK_K)
    elif KIND >= 3:
        factors = factor_tile(scales, n, start, scale_out, INPUTS, GROUP, BLOCK_N, BLOCK_K)
        units = scales + n * scale_out + INPUTS // GROUP
        scale_unit, offset_unit = tl.load(units).to(tl.float32, bitcast=True), tl.load(units + 1)
        offset = (factors >> 16).to(tl.float32) * offset_unit.to(tl.float32, bitcast=True)[:, None]
        if KIND == 3:
            numbers = numbers_at(w + n[:, None] * w_out + k[None, :] * w_in, k, INPUTS, BLOCK_K)
        else:
            pair = start // 2 + tl.arange(0, BLOCK_K // 2)
            bits = numbers_at(w + n[:, None] * w_out + pair[None, :] * w_in, 2 * pair, INPUTS, BLOCK_K)
            numbers = tl.reshape(tl.join(bits & 15, bits >> 4), (BLOCK_N, BLOCK_K))
            if KIND == 5:
                numbers = numbers_of_table(scales + INPUTS // GROUP + 2, n, scale_out, numbers)
        # The first product is exact.
        return numbers.to(tl.float32) * ((factors << 16) >> 16).to(tl.float32) * scale_unit[:, None] + offset
    else:
        pair, groups = start // 2 + tl.arange(0, BLOCK_K // 2), start // GROUP + tl.arange(0, BLOCK_K // GROUP)
        bits = numbers_at(w + n[:, None] * w_out + pair[None, :] * w_in, 2 * pair, INPUTS, BLOCK_K)
        exponents = numbers_at(scales + n[:, None] * scale_out + groups[None, :], groups * GROUP, INPUTS, BLOCK_K)
        factors = power_of_exponent(exponents)[:, :, None]
        bits = tl.reshape(bits, (BLOCK_N, BLOCK_K // GROUP, GROUP // 2))
        weights = tl.join(from_float4(bits & 15) * factors, from_float4(bits >> 4) * factors)
        return tl.reshape(weights, (BLOCK_N, BLOCK_K))


@triton.jit
def multiplied(
    rows, w, scales, n, w_out, w_in, scale_out,
    INPUTS: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Sums float32 [BLOCK_M, BLOCK_N] of rows, pointers [BLOCK_M] to INPUTS neighbouring numbers each, times the
    weights of the outputs `n`. All rows and outputs exist: a caller repeats one where there are too few.

    Numbers float32 times weights of 16 bits are the sum of two of that type times these: nearly as exact as products in
    float32, many times as fast, and the weights are read once."""
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, INPUTS, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x = numbers_at(rows[:, None] + k[None, :], k, INPUTS, BLOCK_K)
        tile = weight_tile(w, scales, n, start, w_out, w_in, scale_out, INPUTS, KIND, GROUP, BLOCK_N, BLOCK_K)
        if KIND == 0 and x.dtype == tl.float32 and tile.dtype == tl.bfloat16:
            high = x.to(tl.bfloat16)
            low = (x - high.to(tl.float32)).to(tl.bfloat16)
            if WIDE:
                high, low, tile = high.to(tl.float32), low.to(tl.float32), tile.to(tl.float32)
            total = tl.dot(low, tl.trans(tile), total, input_precision="ieee")
            total = tl.dot(high, tl.trans(tile), total, input_precision="ieee")
        else:
            # Weights are rounded to the type of the rows, as numbers of the model's type are.
            tile = tile.to(x.dtype)
            if WIDE:
                x, tile = x.to(tl.float32), tile.to(tl.float32)
            total = tl.dot(x, tl.trans(tile), total, input_precision="ieee")
    return total


# Not compiled anew for a number of rows: a row's bits would depend on it.
@triton.jit(do_not_specialize=("rows", "x_batch", "out_batch"))
def product_kernel(
    x, w, scales, bias, out, rows, x_batch, x_row, w_batch, w_out, w_in, scale_out, out_batch, out_row,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr, BIASED: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    number, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    across, down = tl.cdiv(OUTPUTS, BLOCK_N), tl.cdiv(rows, BLOCK_M)
    swath = number // (SWATH * across)
    height = tl.minimum(down - swath * SWATH, SWATH)
    tile_m = swath * SWATH + number % (SWATH * across) % height
    tile_n = number % (SWATH * across) // height
    m = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    n = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    total = multiplied(
        x + batch * x_batch + tl.minimum(m, rows - 1) * x_row, w + batch * w_batch, scales,
        tl.minimum(n, OUTPUTS - 1), w_out, w_in, scale_out, INPUTS, KIND, GROUP, WIDE, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    if BIASED:
        total += tl.load(bias + n, mask=n < OUTPUTS, other=0.0).to(tl.float32)[None, :]
    places = out + batch * out_batch + m[:, None] * out_row + n[None, :]
    tl.store(places, total.to(out.dtype.element_ty), mask=(m < rows)[:, None] & (n < OUTPUTS)[None, :])


@dataclass(frozen=True, slots=True)
class TileShape:
    """The size of a tile, and how many are on their way at a time."""

    rows: int
    outputs: int
    inputs: int
    stages: int
    warps: int = 4

    @property
    def options(self) -> dict[str, int]:
        return {
            "BLOCK_M": self.rows,
            "BLOCK_N": self.outputs,
            "BLOCK_K": self.inputs,
            "num_stages": self.stages,
            "num_warps": self.warps,
        }


def tile_of(dtype: torch.dtype, rows: int | None = None) -> TileShape:
    """The tile for rows of this type: for so many of 16 bits, or with None the only one for any number."""
    if dtype == torch.float32:
        return TileShape(64, 64, 32, 3)
    if rows is None or FEW_ROWS < rows < MANY_ROWS:
        return TileShape(64, 64, 64, 3)
    return TileShape(16, 32, 64, 6) if rows <= FEW_ROWS else TileShape(128, 128, 32, 4, 8)


def group_of(weights: DeviceWeights) -> int:
    return FLOAT4_GROUP if weights.scales is not None and weights.scales.dtype == torch.uint8 else weights.group


def product(x: Tensor, weights: DeviceWeights, by_rows: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    """`y = x W^T + b` for x [..., inputs] and one matrix; the result has the type of x, or this one. Tiles that are
    chosen `by_rows` read a weight less often where there are many, and multiply less where there are few."""
    flat = in_rows(x.flatten(0, -2) if x.ndim != 2 else x)
    if weights.order is not None:
        flat = flat.index_select(1, weights.order)
    out = torch.empty(len(flat), weights.outputs, dtype=dtype or x.dtype, device=x.device)
    shape = tile_of(x.dtype, len(flat) if by_rows else None)
    start(flat.unsqueeze(0), weights, weights.words.unsqueeze(0), out.unsqueeze(0), shape)
    return out.view(*x.shape[:-1], -1)


def product_of_heads(x: Tensor, weight: Tensor) -> Tensor:
    """`y[r, h] = x[r, h] W[h]` for weight [heads, inputs, outputs] and x [rows, heads, inputs]; the result is [rows,
    heads, outputs]."""
    x = in_rows(x)
    out = torch.empty(*x.shape[:2], weight.shape[2], dtype=x.dtype, device=x.device)
    numbers = weight.transpose(1, 2)
    start(x.transpose(0, 1), DeviceWeights(numbers), numbers, out.transpose(0, 1), tile_of(x.dtype))
    return out


def start(x: Tensor, weights: DeviceWeights, words: Tensor, out: Tensor, shape: TileShape) -> None:
    """Multiply x [batch, rows, inputs], words [batch, outputs, ...] into out [batch, rows, outputs]."""
    programs = ceil_div(x.shape[1], shape.rows) * ceil_div(weights.outputs, shape.outputs)
    dummy = words
    scales, bias = weights.scales, weights.bias
    launch(
        product_kernel, (programs, len(x)), x, words, dummy if scales is None else scales,
        dummy if bias is None else bias, out, x.shape[1], x.stride(0), x.stride(1), words.stride(0), words.stride(1),
        words.stride(2), 0 if scales is None else scales.stride(-2), out.stride(0), out.stride(1),
        OUTPUTS=weights.outputs, INPUTS=weights.inputs, KIND=weights.kind, GROUP=group_of(weights),
        BIASED=bias is not None, WIDE=WIDE, **shape.options,
    )  # fmt: skip
