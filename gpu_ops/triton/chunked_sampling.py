# SPDX-License-Identifier: Apache-2.0
"""Draws whose rows are divided over several programs, with the ids of those by one (`sampling.py`): a program has a
chunk of the vocabulary, always the same. Counts and masses are whole numbers, so that all ways to add them agree.

A start of the kernels goes on from the sums of the one before: each program adds those of all chunks anew, and takes
the same decision. So a cut is found by PASSES starts, each of which looks at PROBES keys at once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pontil.gpu_ops.parameters.draws import ALL_KINDS, DeviceDraws, DrawKinds
from pontil.gpu_ops.triton.launch import ceil_div, launch, power_of_2
from pontil.gpu_ops.triton.sampling import (
    INFINITY,
    KEY_OUTSIDE,
    LEAST_TEMPERATURE,
    highest_of,
    key_of,
    load_row,
    masses_of,
    number_of,
)

CHUNK = 4096
PROBES: tl.constexpr = tl.constexpr(64)
# Logits that a program compares with all probes at a time.
FEW: tl.constexpr = tl.constexpr(256)
# Passes that find one of 2^33 keys.
PASSES = 6
# The numbers of a draw between starts: the key that suffices and one that does not, with the numbers and the masses of
# ids from them on; the amount that suffices; the key of a cut by number, and how many ids with this key stay.
LOW, HIGH, LOW_COUNT, LOW_MASS, HIGH_COUNT, HIGH_MASS, TARGET, CUT, ROOM = (tl.constexpr(place) for place in range(9))
STATE: tl.constexpr = tl.constexpr(16)
NOTHING, BY_COUNT, BY_MASS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
NO_LIMIT: tl.constexpr = tl.constexpr(1 << 62)


@triton.jit
def highest_kernel(logits, row, best, stride, size, CHUNKS: tl.constexpr, CHUNK: tl.constexpr):
    """The key and the id of the highest logit of a chunk."""
    draw, chunk = tl.program_id(0), tl.program_id(1)
    row_index = tl.load(row + draw)
    if row_index >= 0:
        start = chunk * CHUNK
        logits += row_index.to(tl.int64) * stride + start
        highest, token = highest_of(logits, tl.minimum(size - start, CHUNK), CHUNK)
        best += (draw * CHUNKS + chunk) * 2
        tl.store(best, key_of(highest))
        tl.store(best + 1, start + token)


@triton.jit
def row_best(best, draw, CHUNKS: tl.constexpr, PADDED: tl.constexpr):
    """The highest logit of a row, and the lowest id that has it."""
    place = tl.arange(0, PADDED)
    keys = tl.load(best + (draw * CHUNKS + place) * 2, mask=place < CHUNKS, other=KEY_OUTSIDE)
    ids = tl.load(best + (draw * CHUNKS + place) * 2 + 1, mask=place < CHUNKS, other=0x7FFFFFFF)
    key = tl.max(keys, 0)
    return number_of(key), tl.min(tl.where(keys == key, ids, 0x7FFFFFFF), 0)


@triton.jit
def finite(highest):
    return tl.where((highest == INFINITY) | (highest == -INFINITY), 0.0, highest)


@triton.jit
def divisor_of(warmth):
    return tl.maximum(warmth, LEAST_TEMPERATURE).to(tl.float32)


@triton.jit
def lowest_key(highest, warmth, min_p):
    """The key of a probability that is min_p times the highest one."""
    return key_of((finite(highest).to(tl.float64) + tl.log(min_p) * warmth).to(tl.float32)).to(tl.int64)


@triton.jit
def mass_for(share, kept):
    """The whole number of mass that reaches a share of what is kept."""
    wanted = share * kept.to(tl.float64)
    enough = wanted.to(tl.int64)
    enough = tl.maximum(enough + (enough.to(tl.float64) < wanted).to(tl.int64), 1)
    return tl.where(share < 1.0, enough, NO_LIMIT)


@triton.jit
def probes_of(low, high):
    """Keys from `low` on, int64 [PROBES], and which of them are below `high`."""
    step = (high - low + PROBES - 1) // PROBES
    keys = low + tl.arange(0, PROBES) * step
    return keys, keys < high


@triton.jit
def one_of(values, place):
    return tl.sum(tl.where(tl.arange(0, PROBES) == place, values, 0), 0)


@triton.jit
def next_state(
    state, sums, share, most, CHUNKS: tl.constexpr, PADDED: tl.constexpr, SEARCH: tl.constexpr, FIRST: tl.constexpr
):
    """The state after a pass of a search, the FIRST one of a row tells what there is."""
    low, high, target = tl.load(state + LOW), tl.load(state + HIGH), tl.load(state + TARGET)
    keys, valid = probes_of(low, high)
    chunk, probe = tl.arange(0, PADDED)[:, None], tl.arange(0, PROBES)[None, :]
    counts = tl.sum(tl.load(sums + chunk * 2 * PROBES + probe, mask=chunk < CHUNKS, other=0), 0)
    masses = tl.sum(tl.load(sums + (chunk * 2 + 1) * PROBES + probe, mask=chunk < CHUNKS, other=0), 0)
    if FIRST:
        if SEARCH == BY_COUNT:
            count = one_of(counts, 0)
            target = tl.where(most > 0, tl.minimum(most, count), count)
        else:
            target = mass_for(share, one_of(masses, 0))
    amounts = counts if SEARCH == BY_COUNT else masses
    place = tl.max(tl.where(valid & (amounts >= target), tl.arange(0, PROBES), 0), 0)
    above = tl.sum(valid.to(tl.int32), 0) > place + 1
    return (
        one_of(keys, place),
        tl.where(above, one_of(keys, place + 1), high),
        one_of(counts, place),
        one_of(masses, place),
        tl.where(above, one_of(counts, place + 1), tl.load(state + HIGH_COUNT)),
        tl.where(above, one_of(masses, place + 1), tl.load(state + HIGH_MASS)),
        target,
        tl.load(state + CUT),
        tl.load(state + ROOM),
    )


@triton.jit
def store_state(state, low, high, low_count, low_mass, high_count, high_mass, target, cut, room):
    tl.store(state + LOW, low)
    tl.store(state + HIGH, high)
    tl.store(state + LOW_COUNT, low_count)
    tl.store(state + LOW_MASS, low_mass)
    tl.store(state + HIGH_COUNT, high_count)
    tl.store(state + HIGH_MASS, high_mass)
    tl.store(state + TARGET, target)
    tl.store(state + CUT, cut)
    tl.store(state + ROOM, room)


@triton.jit
def state_of(
    state, sums, highest, warmth, most, share, min_p,
    CHUNKS: tl.constexpr, PADDED: tl.constexpr, LAST: tl.constexpr, FIRST: tl.constexpr, BEGINS: tl.constexpr,
):  # fmt: skip
    """The state with which a pass begins. One of another search goes on from the cut that the LAST one found."""
    above = key_of(finite(highest)).to(tl.int64) + 1
    nothing = above * 0
    if LAST == NOTHING:
        low = lowest_key(highest, warmth, min_p)
        return low, above, nothing, nothing, nothing, nothing, nothing + NO_LIMIT, low, nothing + NO_LIMIT
    else:
        low, high, low_count, low_mass, high_count, high_mass, target, cut, room = next_state(
            state, sums, share, most, CHUNKS, PADDED, LAST, FIRST
        )
        if BEGINS:
            room = target - high_count
            kept = high_mass + room * ((low_mass - high_mass) // tl.maximum(low_count - high_count, 1))
            return low, above, low_count, low_mass, nothing, nothing, mass_for(share, kept), low, room
        else:
            return low, high, low_count, low_mass, high_count, high_mass, target, cut, room


@triton.jit
def pass_kernel(
    logits, row, temperature, top_k, top_p, min_p, best, state, sums, new_state, new_sums, stride, size,
    CHUNKS: tl.constexpr, PADDED: tl.constexpr, LAST: tl.constexpr, FIRST: tl.constexpr, BEGINS: tl.constexpr,
    ENDS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The sums of a chunk: numbers and masses of ids that have at least a probe's key, or, where the search ENDS, the
    mass of ids above the cut, and number and mass of those at it."""
    draw, chunk = tl.program_id(0), tl.program_id(1)
    row_index = tl.load(row + draw)
    if row_index >= 0:
        logits += row_index.to(tl.int64) * stride
        highest, token = row_best(best, draw, CHUNKS, PADDED)
        warmth, share, most = tl.load(temperature + draw), tl.load(top_p + draw), tl.load(top_k + draw).to(tl.int64)
        low, high, low_count, low_mass, high_count, high_mass, target, cut, room = state_of(
            state + draw * STATE, sums + draw * CHUNKS * 2 * PROBES, highest, warmth, most, share,
            tl.load(min_p + draw), CHUNKS, PADDED, LAST, FIRST, BEGINS,
        )  # fmt: skip
        if chunk == 0:
            store_state(
                new_state + draw * STATE, low, high, low_count, low_mass, high_count, high_mass, target, cut, room
            )
        new_sums += (draw * CHUNKS + chunk) * 2 * PROBES
        start, top, divisor = chunk * CHUNK, finite(highest), divisor_of(warmth)
        end = tl.minimum(start + CHUNK, size)
        if ENDS:
            keys, x = load_row(logits, start, size, highest, CHUNK)
            amounts, is_equal = masses_of(x, keys, top, divisor), keys == low
            tl.store(new_sums, tl.sum(tl.where(keys > low, amounts, 0), 0))
            tl.store(new_sums + 1, tl.sum(is_equal.to(tl.int64), 0))
            tl.store(new_sums + 2, tl.sum(tl.where(is_equal, amounts, 0), 0))
        else:
            probes, valid = probes_of(low, high)
            counts, masses = tl.zeros((PROBES,), tl.int64), tl.zeros((PROBES,), tl.int64)
            for at in range(start, end, FEW):
                keys, x = load_row(logits, at, size, highest, FEW)
                amounts = masses_of(x, keys, top, divisor)
                reach = (keys.to(tl.int64)[:, None] >= probes[None, :]) & (keys != KEY_OUTSIDE)[:, None]
                counts += tl.sum(reach.to(tl.int64), 0)
                masses += tl.sum(tl.where(reach, amounts[:, None], 0), 0)
            tl.store(new_sums + tl.arange(0, PROBES), counts)
            tl.store(new_sums + PROBES + tl.arange(0, PROBES), masses)


@triton.jit
def choose_kernel(
    logits, row, temperature, top_p, uniform, best, state, sums, out, stride, size,
    CHUNKS: tl.constexpr, PADDED: tl.constexpr, RANDOM: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The id of a draw: the chunk in which it is, and its place there."""
    draw = tl.program_id(0)
    row_index = tl.load(row + draw)
    if row_index >= 0:
        logits += row_index.to(tl.int64) * stride
        highest, token = row_best(best, draw, CHUNKS, PADDED)
        if RANDOM:
            warmth = tl.load(temperature + draw)
            if warmth > 0.0:
                state += draw * STATE
                key, target, room = tl.load(state + LOW), tl.load(state + TARGET), tl.load(state + ROOM)
                place = tl.arange(0, PADDED)
                found = sums + (draw * CHUNKS + place) * 2 * PROBES
                masses = tl.load(found, mask=place < CHUNKS, other=0)
                equal = tl.load(found + 1, mask=place < CHUNKS, other=0)
                id_mass = tl.sum(tl.load(found + 2, mask=place < CHUNKS, other=0), 0) // tl.maximum(tl.sum(equal, 0), 1)
                # Behind a cut by mass all ids with its key might stay, at the cut by number only some.
                room = tl.minimum(tl.where(key == tl.load(state + CUT), room, NO_LIMIT), tl.sum(equal, 0))
                if tl.load(top_p + draw) < 1.0:
                    missing = (target - tl.sum(masses, 0) + id_mass - 1) // tl.maximum(id_mass, 1)
                    room = tl.minimum(room, missing)
                before_equal = tl.cumsum(equal, 0) - equal
                kept = masses + tl.minimum(tl.maximum(room - before_equal, 0), equal) * id_mass
                total = tl.sum(kept, 0)
                wanted = tl.minimum((tl.load(uniform + draw) * total.to(tl.float64)).to(tl.int64), total - 1)
                behind = tl.cumsum(kept, 0)
                chunk = tl.sum(((behind <= wanted) & (place < CHUNKS)).to(tl.int32), 0)
                before = tl.sum(tl.where(place == chunk, behind - kept, 0), 0)
                rank = tl.sum(tl.where(place == chunk, before_equal, 0), 0)
                keys, x = load_row(logits, chunk * CHUNK, size, highest, CHUNK)
                is_equal = (keys.to(tl.int64) == key).to(tl.int64)
                stays = (keys > key) | ((is_equal > 0) & (rank + tl.cumsum(is_equal, 0) <= room))
                amounts = tl.where(stays, masses_of(x, keys, finite(highest), divisor_of(warmth)), 0)
                is_before = before + tl.cumsum(amounts, 0) <= wanted
                token = tl.minimum(chunk * CHUNK + tl.sum(is_before.to(tl.int32), 0), size - 1)
        tl.store(out + draw, token)


def draw(logits: Tensor, draws: DeviceDraws, out: Tensor, kinds: DrawKinds = ALL_KINDS, chunk: int = CHUNK) -> None:
    """Write what `sampling.draw` writes, of draws of these kinds, by chunks of a power of two of at least FEW."""
    count, size = len(draws.row), logits.shape[1]
    chunks = ceil_div(size, chunk)
    best = torch.empty(count, chunks, 2, dtype=torch.int32, device=logits.device)
    state = torch.empty(2, count, STATE.value, dtype=torch.int64, device=logits.device)
    sums = torch.empty(2, count, chunks, 2 * PROBES.value, dtype=torch.int64, device=logits.device)
    common: dict[str, int] = {"CHUNKS": chunks, "CHUNK": chunk, "num_warps": 8}
    sizes = common | {"PADDED": power_of_2(chunks)}
    launch(highest_kernel, (count, chunks), logits, draws.row, best, logits.stride(0), size, **common)
    searches = [BY_COUNT.value] * PASSES * kinds.by_count + [BY_MASS.value] * PASSES * kinds.by_mass
    turns = [*searches, NOTHING.value] if kinds.random else []
    for turn, search in enumerate(turns):
        last, new = turns[turn - 1] if turn else NOTHING.value, turn % 2
        launch(
            pass_kernel, (count, chunks), logits, draws.row, draws.temperature, draws.top_k, draws.top_p, draws.min_p,
            best, state[1 - new], sums[1 - new], state[new], sums[new], logits.stride(0), size, LAST=last,
            FIRST=turn == 1, BEGINS=last == BY_COUNT.value != search, ENDS=search == NOTHING.value, **sizes,
        )  # fmt: skip
    at = (len(turns) - 1) % 2
    launch(
        choose_kernel, (count,), logits, draws.row, draws.temperature, draws.top_p, draws.uniform, best, state[at],
        sums[at], out, logits.stride(0), size, RANDOM=kinds.random, **sizes,
    )  # fmt: skip
