# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers: the gated delta rule (Yang et al., 2024, arXiv 2412.06464), the state space of Mamba 2 (Dao and Gu,
2024, arXiv 2405.21060), and the short convolution before both.

A program takes in the positions of a span one after the other, with some columns of a head's matrix in registers. Its
sums have one order, whatever the number of rows is: so a row's bits depend on what is before it in its sequence only,
and positions may be cut into spans in any way (C16). States are read from the block with the position before a span,
and written to each block that its positions end in.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pontil.gpu_ops.parameters.recurrent import SPAN_NUMBERS, RecurrentSizes, StateTile
from pontil.gpu_ops.triton.launch import ceil_div, in_rows, launch, power_of_2

# Numbers of a span: those before its blocks.
FIELDS: tl.constexpr = tl.constexpr(SPAN_NUMBERS)
# Of one program: channels of a row, and columns of a matrix, with as many numbers as one warp has registers for.
CHANNELS, MATRIX = 256, 2048


@triton.jit
def convolve_kernel(
    x, weight, bias, states, spans, rows, out, x_row, state_block, span_row,
    MATRICES: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, BIASED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Silu of the convolution of one row, float32. Rows of padding are 0."""
    row, channel = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < CHANNELS
    place = out + row.to(tl.int64) * CHANNELS + channel
    number = tl.load(rows + row)
    if number < 0:
        tl.store(place, tl.zeros((BLOCK,), tl.float32), mask=inside)
        return
    span = spans + number * span_row
    first, start = tl.load(span), tl.load(span + 1)
    before = states + tl.load(span + 3).to(tl.int64) * state_block + MATRICES
    total = tl.zeros((BLOCK,), tl.float32)
    for tap in tl.static_range(WIDTH):
        # Rows in front of the span's first one are in the state; their places count back from its end.
        own = row - (WIDTH - 1 - tap)
        here, there = inside & (own >= first), inside & (own < first) & (start > 0)
        number = tl.load(x + own.to(tl.int64) * x_row + channel, mask=here, other=0.0)
        number += tl.load(before + (own - first + WIDTH - 1) * CHANNELS + channel, mask=there, other=0.0)
        total += number * tl.load(weight + channel * WIDTH + tap, mask=inside, other=0.0)
    if BIASED:
        total += tl.load(bias + channel, mask=inside, other=0.0)
    tl.store(place, total * tl.sigmoid(total), mask=inside)


@triton.jit
def keep_kernel(
    x, states, spans, x_row, state_block, span_row, block_size,
    MATRICES: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the last inputs of each block that a span's positions end in. The last block comes first: the first may be
    where the states before the span are."""
    span = spans + tl.program_id(0) * span_row
    first, start, count = tl.load(span), tl.load(span + 1), tl.load(span + 2)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < CHANNELS
    before = states + tl.load(span + 3).to(tl.int64) * state_block + MATRICES
    end = start + count
    first_block = start // block_size
    blocks = tl.where(count > 0, (end - 1) // block_size - first_block + 1, 0)
    for turn in range(0, blocks):
        block = blocks - 1 - turn
        behind = tl.minimum(end, (first_block + block + 1) * block_size) - start
        target = states + tl.load(span + FIELDS + block).to(tl.int64) * state_block + MATRICES
        # In rising order, each channel by one thread: an input that moves forward is read before it is replaced.
        for tap in tl.static_range(WIDTH - 1):
            own = behind - (WIDTH - 1) + tap
            here, there = inside & (own >= 0), inside & (own < 0) & (start > 0)
            number = tl.load(x + (first + own).to(tl.int64) * x_row + channel, mask=here, other=0.0)
            number += tl.load(before + (own + WIDTH - 1) * CHANNELS + channel, mask=there, other=0.0)
            tl.store(target + tap * CHANNELS + channel, number, mask=inside)


@triton.jit
def unit(x, epsilon):
    """x divided by its length."""
    return x * tl.rsqrt(tl.sum(x * x, 0) + epsilon)


@triton.jit
def recur_kernel(
    x, decay, strength, states, spans, out, state_block, span_row, block_size, scale, epsilon,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    DELTA: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Some columns of a value head of a span's rows."""
    channels: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
    span = spans + tl.program_id(0) * span_row
    first, start, count = tl.load(span), tl.load(span + 1), tl.load(span + 2)
    head, column = tl.program_id(1), tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    key = tl.arange(0, BLOCK_K)
    has_key, has_column = key < KEY_DIM, column < VALUE_DIM
    query_place = x + head // (VALUE_HEADS // KEY_HEADS) * KEY_DIM + key
    value_place = x + 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + column
    place = (head * KEY_DIM + key[:, None]) * VALUE_DIM + column[None, :]
    whole = has_key[:, None] & has_column[None, :]
    before = states + tl.load(span + 3).to(tl.int64) * state_block
    state = tl.load(before + place, mask=whole & (start > 0) & (count > 0), other=0.0)
    for at in range(0, count):
        row = (first + at).to(tl.int64)
        query = tl.load(query_place + row * channels, mask=has_key, other=0.0)
        own = tl.load(query_place + row * channels + KEY_HEADS * KEY_DIM, mask=has_key, other=0.0)
        value = tl.load(value_place + row * channels, mask=has_column, other=0.0)
        strong = tl.load(strength + row * VALUE_HEADS + head)
        state *= tl.load(decay + row * VALUE_HEADS + head)
        if DELTA:
            query, own = unit(query, epsilon) * scale, unit(own, epsilon)
            value -= tl.sum(state * own[:, None], 0)
        state += own[:, None] * (value * strong)[None, :]
        read = tl.sum(state * query[:, None], 0)
        tl.store(out + (row * VALUE_HEADS + head) * VALUE_DIM + column, read, mask=has_column)
        behind = start + at + 1
        if (behind % block_size == 0) | (at == count - 1):
            block = tl.load(span + FIELDS + (behind - 1) // block_size - start // block_size)
            tl.store(states + block.to(tl.int64) * state_block + place, state, mask=whole)


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, states: Tensor, tile: StateTile, sizes: RecurrentSizes
) -> Tensor:
    """Convolve each channel of x float32 [rows, channels] with its own weight [channels, width], add a `bias`
    [channels], and take silu of it; then write the inputs of the last positions to the states float32 [blocks, numbers]
    of the layer. Rows in front of a span are in its state."""
    x, out = in_rows(x), torch.empty(x.shape, dtype=torch.float32, device=x.device)
    across = ceil_div(sizes.channels, CHANNELS)
    common = {"MATRICES": sizes.matrices, "CHANNELS": sizes.channels, "WIDTH": sizes.width, "BLOCK": CHANNELS}
    launch(
        convolve_kernel, (len(x), across), x, weight, weight if bias is None else bias, states, tile.spans, tile.rows,
        out, x.stride(0), states.stride(0), tile.spans.stride(0), BIASED=bias is not None, num_warps=2, **common,
    )  # fmt: skip
    launch(
        keep_kernel, (len(tile.spans), across), x, states, tile.spans, x.stride(0), states.stride(0),
        tile.spans.stride(0), tile.block_size, num_warps=2, **common,
    )  # fmt: skip
    return out


def recur(
    x: Tensor, decay: Tensor, strength: Tensor, states: Tensor, tile: StateTile, sizes: RecurrentSizes,
    epsilon: float | None,
) -> Tensor:  # fmt: skip
    """Read the states [blocks, numbers] of the layer, which are changed in place, with each row's queries after it was
    taken in: the delta rule for queries and keys of length 1 if there is an `epsilon` for that length, else the state
    space, to which values times the strength are added.

    x float32 [rows, channels] is what `convolve` made, and decay and strength float32 are [rows, value_heads]. The
    result is float32 [rows, value_heads, value_dim]; that of padding is 0."""
    out = torch.zeros(len(x), sizes.value_heads, sizes.value_dim, dtype=torch.float32, device=x.device)
    block_k = power_of_2(sizes.key_dim)
    block_v = min(power_of_2(sizes.value_dim), max(1, MATRIX // block_k))
    launch(
        recur_kernel, (len(tile.spans), sizes.value_heads, ceil_div(sizes.value_dim, block_v)), x, decay.contiguous(),
        strength.contiguous(), states, tile.spans, out, states.stride(0), tile.spans.stride(0), tile.block_size,
        sizes.key_dim**-0.5, epsilon or 0.0, KEY_HEADS=sizes.key_heads, VALUE_HEADS=sizes.value_heads,
        KEY_DIM=sizes.key_dim, VALUE_DIM=sizes.value_dim, DELTA=epsilon is not None, BLOCK_K=block_k, BLOCK_V=block_v,
        num_warps=1,
    )  # fmt: skip
    return out
