# SPDX-License-Identifier: Apache-2.0
"""Draws of ids from rows of logits. One program makes one draw and reads its row again and again, with nothing sorted:
cuts are found by a search over the logits' own bits.

Masses are whole numbers, so that their sum is the same in every order. A logit's mass is a function of it, of the row's
highest one and of the temperature. No number of the row is ever on the host.
"""

import triton
import triton.language as tl
from torch import Tensor

from pontil.gpu_ops.parameters.draws import DeviceDraws
from pontil.gpu_ops.triton.launch import launch, power_of_2

# The highest logit of a row has this mass; the sum of a million such is still below 2^63.
UNIT = tl.constexpr(2.0**43)
# Logits that a program reads at a time, and the number of its warps: 8 for each thread.
MOST_BLOCK, MOST_WARPS = 4096, 16
# The key of places behind the end of the row, below that of minus infinity.
KEY_OUTSIDE = tl.constexpr(-2147483648)
INFINITY = tl.constexpr(float("inf"))
# The smallest divisor of logits, as on the CPU.
LEAST_TEMPERATURE = tl.constexpr(1.1754943508222875e-38)


@triton.jit
def without_nan(x):
    return tl.where(x != x, -INFINITY, x)


@triton.jit
def key_of(x):
    """int32 keys in the order of numbers that are not NaN; the sum turns -0.0 into 0.0, which equals it."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def number_of(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def load_row(logits, start, size, highest, BLOCK: tl.constexpr):
    """Logits from `start` on, finite where those of the row allow no probabilities: infinite ones become equal, and so
    do all of a row in which every id is forbidden. Returns their keys and themselves."""
    place = start + tl.arange(0, BLOCK)
    inside = place < size
    x = without_nan(tl.load(logits + place, mask=inside, other=-INFINITY))
    endless = (highest == INFINITY) | (highest == -INFINITY)
    x = tl.where(endless, tl.where(x == highest, 0.0, -INFINITY), x)
    return tl.where(inside, key_of(x), KEY_OUTSIDE), x


@triton.jit
def masses_of(x, keys, top, temperature):
    weights = tl.exp(tl.div_rn(x - top, temperature)) * UNIT
    return tl.where(keys == KEY_OUTSIDE, 0, weights.to(tl.int64))


@triton.jit
def highest_of(logits, size, BLOCK: tl.constexpr):
    """The highest logit of a row, and the lowest id that has it."""
    best = tl.full((BLOCK,), KEY_OUTSIDE, tl.int32)
    ids = tl.full((BLOCK,), 0, tl.int32)
    for start in range(0, size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < size
        keys = key_of(without_nan(tl.load(logits + place, mask=inside, other=-INFINITY)))
        better = inside & (keys > best)
        best = tl.where(better, keys, best)
        ids = tl.where(better, place, ids)
    key = tl.max(best, 0)
    return number_of(key), tl.min(tl.where(best == key, ids, 0x7FFFFFFF), 0)


@triton.jit
def amounts(x, keys, top, temperature, BY_MASS: tl.constexpr):
    if BY_MASS:
        return masses_of(x, keys, top, temperature)
    else:
        return tl.where(keys == KEY_OUTSIDE, 0, 1).to(tl.int64)


@triton.jit
def key_reaching(
    logits, size, highest, top, temperature, target, low, high, BY_MASS: tl.constexpr, BLOCK: tl.constexpr
):
    """The greatest key such that the ids with at least this key are `target` in number, or in mass. All ids from the
    key `low` on suffice, and those from `high` on do not. Each pass over the row leaves a quarter of the keys."""
    while high - low > 1:
        quarter = tl.maximum((high - low) // 4, 1)
        first, second, third = low + quarter, low + 2 * quarter, low + 3 * quarter
        from_first = tl.zeros((BLOCK,), tl.int64)
        from_second = tl.zeros((BLOCK,), tl.int64)
        from_third = tl.zeros((BLOCK,), tl.int64)
        for start in range(0, size, BLOCK):
            keys, x = load_row(logits, start, size, highest, BLOCK)
            amount = amounts(x, keys, top, temperature, BY_MASS)
            from_first += tl.where(keys >= first.to(tl.int32), amount, 0)
            from_second += tl.where(keys >= second.to(tl.int32), amount, 0)
            from_third += tl.where(keys >= third.to(tl.int32), amount, 0)
        if tl.sum(from_third, 0) >= target:
            low = third
        elif tl.sum(from_second, 0) >= target:
            low = second
            high = tl.minimum(high, third)
        elif tl.sum(from_first, 0) >= target:
            low = first
            high = tl.minimum(high, second)
        else:
            high = first
    return low


@triton.jit
def parts_at(logits, size, highest, top, temperature, key, BLOCK: tl.constexpr):
    """The number and mass of ids above a key, and of those that have it, all int64."""
    higher = tl.zeros((BLOCK,), tl.int64)
    mass = tl.zeros((BLOCK,), tl.int64)
    equal = tl.zeros((BLOCK,), tl.int64)
    equal_mass = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, size, BLOCK):
        keys, x = load_row(logits, start, size, highest, BLOCK)
        amount = masses_of(x, keys, top, temperature)
        higher += tl.where(keys > key, 1, 0)
        mass += tl.where(keys > key, amount, 0)
        equal += tl.where(keys == key, 1, 0)
        equal_mass += tl.where(keys == key, amount, 0)
    return tl.sum(higher, 0), tl.sum(mass, 0), tl.sum(equal, 0), tl.sum(equal_mass, 0)


@triton.jit
def kept_amounts(logits, start, size, highest, top, temperature, key, last, BY_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The masses of the kept ids: above the key, or with it and not behind the id `last`. Else 1 for each id with
    the key."""
    keys, x = load_row(logits, start, size, highest, BLOCK)
    if BY_MASS:
        is_kept = (keys > key) | ((keys == key) & (start + tl.arange(0, BLOCK) <= last))
        return tl.where(is_kept, masses_of(x, keys, top, temperature), 0)
    else:
        return tl.where(keys == key, 1, 0).to(tl.int64)


@triton.jit
def id_beyond(logits, size, highest, top, temperature, key, last, target, BY_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The first id up to which the kept amounts are more than the target. All of them are more."""
    start = 0
    before = tl.full((), 0, tl.int64)
    part = tl.sum(kept_amounts(logits, start, size, highest, top, temperature, key, last, BY_MASS, BLOCK), 0)
    while (before + part <= target) & (start + BLOCK < size):
        before += part
        start += BLOCK
        part = tl.sum(kept_amounts(logits, start, size, highest, top, temperature, key, last, BY_MASS, BLOCK), 0)
    amount = kept_amounts(logits, start, size, highest, top, temperature, key, last, BY_MASS, BLOCK)
    is_before = before + tl.cumsum(amount, 0) <= target
    return tl.minimum(start + tl.sum(is_before.to(tl.int32), 0), size - 1)


@triton.jit
def draw_kernel(logits, row, temperature, top_k, top_p, min_p, uniform, out, stride, size, BLOCK: tl.constexpr):
    draw = tl.program_id(0)
    row_index = tl.load(row + draw)
    if row_index >= 0:
        logits += row_index.to(tl.int64) * stride
        highest, token = highest_of(logits, size, BLOCK)
        warmth = tl.load(temperature + draw)
        if warmth > 0.0:
            top = tl.where((highest == INFINITY) | (highest == -INFINITY), 0.0, highest)
            divisor = tl.maximum(warmth, LEAST_TEMPERATURE).to(tl.float32)
            # min_p: a probability that is min_p times the highest one.
            floor = (top.to(tl.float64) + tl.log(tl.load(min_p + draw)) * warmth).to(tl.float32)
            key = key_of(floor)
            above = key_of(top).to(tl.int64) + 1
            higher, mass, equal, equal_mass = parts_at(logits, size, highest, top, divisor, key, BLOCK)
            room = equal
            most = tl.load(top_k + draw).to(tl.int64)
            if (most > 0) & (most < higher + equal):
                key = key_reaching(logits, size, highest, top, divisor, most, key.to(tl.int64), above, False, BLOCK).to(
                    tl.int32
                )
                higher, mass, equal, equal_mass = parts_at(logits, size, highest, top, divisor, key, BLOCK)
                room = most - higher
            id_mass = equal_mass // tl.maximum(equal, 1)
            share = tl.load(top_p + draw)
            if share < 1.0:
                target_mass = share * (mass + room * id_mass).to(tl.float64)
                enough = target_mass.to(tl.int64)
                enough = tl.maximum(enough + (enough.to(tl.float64) < target_mass).to(tl.int64), 1)
                if mass >= enough:
                    key = key_reaching(
                        logits, size, highest, top, divisor, enough, key.to(tl.int64) + 1, above, True, BLOCK
                    ).to(tl.int32)
                    higher, mass, equal, equal_mass = parts_at(logits, size, highest, top, divisor, key, BLOCK)
                    id_mass = equal_mass // tl.maximum(equal, 1)
                    room = equal
                room = tl.minimum(room, (enough - mass + id_mass - 1) // tl.maximum(id_mass, 1))
            last = size
            if room < equal:
                # Of equal logits at the cut the lowest ids stay.
                last = id_beyond(logits, size, highest, top, divisor, key, size, room - 1, False, BLOCK)
            total = mass + room * id_mass
            target = tl.minimum((tl.load(uniform + draw) * total.to(tl.float64)).to(tl.int64), total - 1)
            token = id_beyond(logits, size, highest, top, divisor, key, last, target, True, BLOCK)
        tl.store(out + draw, token)


def draw(logits: Tensor, draws: DeviceDraws, out: Tensor) -> None:
    """Write the ids that are drawn from logits float32 [rows, vocabulary] into `out` int32 [draws], which stays as
    it is where nothing is drawn."""
    size = logits.shape[1]
    block = min(MOST_BLOCK, power_of_2(size))
    launch(
        draw_kernel, (len(draws.row),), logits, draws.row, draws.temperature, draws.top_k, draws.top_p, draws.min_p,
        draws.uniform, out, logits.stride(0), size, BLOCK=block, num_warps=max(1, MOST_WARPS * block // MOST_BLOCK),
    )  # fmt: skip
