# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers: positions of several sequences, whose states are in blocks of a pool."""

from collections.abc import Sequence

import torch
from ladder import Budget, KernelCase, Results
from product_cases import drawn
from torch import Tensor

from pontil.gpu_ops.kernels.tile import TileSpan
from pontil.gpu_ops.kv.device_states import DeviceStates
from pontil.gpu_ops.kv.states import StateSpan, TileStates
from pontil.gpu_ops.parameters.recurrent import RecurrentSizes, StateTile
from pontil.gpu_ops.recurrence import causal_convolution, gated_delta, state_space, unit
from pontil.runtime.engine.device.tile_inputs import state_sections

CPU = torch.device("cpu")
BLOCK_SIZE, BLOCKS, LAYERS = 8, 9, 2
# Spans that begin a text, that cross into another block at once, that fill several, and of one position inside one.
SPANS = [StateSpan(0, 3, [1]), StateSpan(7, 2, [2, 3]), StateSpan(8, 17, [4, 5, 6, 7]), StateSpan(5, 1, [8])]
ROWS = sum(span.count for span in SPANS)
# Queries and keys of fewer numbers than a power of two, heads that share a key, and more channels than a program has.
SIZES = {"gated-delta": RecurrentSizes(2, 4, 24, 40, 4), "state-space": RecurrentSizes(1, 6, 16, 20, 4)}


def pool_on(device: torch.device, sizes: RecurrentSizes) -> Tensor:
    """A pool of states behind other bytes of each block."""
    numbers = LAYERS * (sizes.matrices + (sizes.width - 1) * sizes.channels)
    return drawn(9, BLOCKS, 64 + numbers).to(device)[:, 64:]


def inputs(sizes: RecurrentSizes) -> tuple[Tensor, ...]:
    """Make the inputs of the convolution, its weights and biases, decays and strengths."""
    rows = ROWS + 2
    decay, strength = (drawn(seed, rows, sizes.value_heads).sigmoid() for seed in (2, 3))
    channels = sizes.channels
    return drawn(1, rows, channels), drawn(4, channels, sizes.width), drawn(5, channels), decay, strength


def by_kernels(name: str, device: torch.device, spans: Sequence[StateSpan], pool: Tensor, rows: slice) -> Tensor:
    sizes, (x, weight, bias, decay, strength) = SIZES[name], (one.to(device) for one in inputs(SIZES[name]))
    count = ROWS + 2 if rows == slice(None) else rows.stop - rows.start
    own = [TileSpan(span.start, span.count, span.blocks) for span in spans]
    tile = state_sections(own, count, len(spans) + 1, BLOCK_SIZE)
    numbers, owners = (torch.from_numpy(one).to(device) for one in tile)
    states = DeviceStates(pool, StateTile(numbers, owners, BLOCK_SIZE))
    if name == "gated-delta":
        return states.gated_delta(1, sizes, x[rows], weight, decay[rows], strength[rows])
    return states.state_space(1, sizes, x[rows], (weight, bias), decay[rows], strength[rows])[0]


def by_torch(name: str, pool: Tensor) -> Tensor:
    sizes, (x, weight, bias, decay, strength) = SIZES[name], inputs(SIZES[name])
    out = torch.zeros(ROWS + 2, sizes.value_heads, sizes.value_dim)
    numbers = sizes.matrices + (sizes.width - 1) * sizes.channels
    for own, state in TileStates(pool, BLOCK_SIZE, SPANS).pieces(1, numbers):
        matrix = state[: sizes.matrices].view(sizes.value_heads, sizes.key_dim, sizes.value_dim)
        recent = state[sizes.matrices :].view(sizes.width - 1, sizes.channels)
        delta = name == "gated-delta"
        made = causal_convolution(recent, x[own], weight, None if delta else bias)
        q, k, v = made.split((sizes.keys, sizes.keys, sizes.value_heads * sizes.value_dim), dim=1)
        q, k = (part.view(len(part), sizes.key_heads, sizes.key_dim) for part in (q, k))
        v = v.view(len(v), sizes.value_heads, sizes.value_dim)
        if delta:
            out[own] = gated_delta(unit(q) * sizes.key_dim**-0.5, unit(k), v, decay[own], strength[own], matrix)
        else:
            out[own] = state_space(q, k, v * strength[own].unsqueeze(-1), decay[own], matrix)
    return out


def beside_torch(name: str) -> KernelCase:
    """The results of all rows, and the whole pool: of blocks that no position is in too."""

    def call(device: torch.device) -> Results:
        pool = pool_on(device, SIZES[name])
        return by_kernels(name, device, SPANS, pool, slice(None)), pool

    def expected() -> Results:
        pool = pool_on(CPU, SIZES[name])
        return by_torch(name, pool), pool

    return KernelCase(f"recurrent-{name}", call, expected, 1e-5, compiled=False)


def cut(name: str) -> KernelCase:
    """The same bits, of results and states, for any cutting: here one position after the other, or a few."""

    def call(device: torch.device) -> Results:
        pool, parts, row = pool_on(device, SIZES[name]), list[Tensor](), 0
        for span in SPANS:
            at = 0
            for count in (1, 1, 6, 2, span.count):
                count = min(count, span.count - at)
                if count:
                    part = StateSpan(span.start + at, count, span.blocks)
                    parts.append(by_kernels(name, device, [part], pool, slice(row, row + count)))
                row, at = row + count, at + count
        return torch.cat(parts), pool

    def whole(device: torch.device) -> Results:
        pool = pool_on(device, SIZES[name])
        return by_kernels(name, device, SPANS, pool, slice(None))[:ROWS], pool

    return KernelCase(f"recurrent-{name}-cut", call, tolerance=0, compiled=False, whole=whole)


def real(name: str, sizes: RecurrentSizes) -> KernelCase:
    """A layer of a published model: decode steps and prompts are one kernel each."""

    def call(device: torch.device) -> Results:
        def made(*shape: int) -> Tensor:
            return torch.empty(*shape, device=device)

        pool = made(4, sizes.matrices + (sizes.width - 1) * sizes.channels)
        tile = StateTile(made(8, 6).int(), made(8).int(), 256)
        states, weight = DeviceStates(pool, tile), made(sizes.channels, sizes.width)
        x, decay, strength = made(8, sizes.channels), made(8, sizes.value_heads), made(8, sizes.value_heads)
        if name == "mamba2":
            return states.state_space(0, sizes, x, (weight, made(sizes.channels)), decay, strength)
        return (states.gated_delta(0, sizes, x, weight, decay, strength),)

    return KernelCase(f"recurrent-real-{name}", call, budget=Budget(registers=200), interpreted=False)


CASES = [
    *(beside_torch(name) for name in SIZES),
    *(cut(name) for name in SIZES),
    real("qwen3-next", RecurrentSizes(16, 32, 128, 128, 4)),
    real("mamba2", RecurrentSizes(1, 128, 256, 64, 4)),
]
