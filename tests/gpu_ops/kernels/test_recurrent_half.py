# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers by every instruction set: the reference's results and states, in any cutting and company (C16)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from layer_cases import EPSILON, random, weight
from torch import Tensor

from pontil.gpu_ops.kernels.layer import Norms
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.recurrent import RecurrentHalf, RecurrentShape, RecurrentWeights
from pontil.gpu_ops.kernels.tile import KernelTile, TileSpan
from pontil.gpu_ops.kernels.weights.adapters import MatrixAdapters
from pontil.gpu_ops.kernels.weights.arena import Arena
from pontil.gpu_ops.kernels.weights.matrix import pack
from pontil.gpu_ops.kv.states import StateSpan, TileStates
from pontil.gpu_ops.norm import rms_norm
from pontil.gpu_ops.parameters.adapters import NO_ADAPTER, LowRank
from pontil.gpu_ops.recurrence import causal_convolution, gated_delta, state_space, unit

FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
HIDDEN, LENGTH, TOKENS, LAYERS = 64, 90, 32, 2


class AdaptedHalf(RecurrentHalf):
    """The half with the adapters of its products."""

    own: list[MatrixAdapters]


@dataclass(frozen=True)
class RecurrentCase:
    """A random layer, number 1 of LAYERS, over one text in blocks of TOKENS positions: of the delta rule, or a state
    `space`. Its adapters may be `merged` into its products."""

    dtype: torch.dtype
    key_heads: int = 2
    value_heads: int = 6
    key_dim: int = 16
    value_dim: int = 32
    width: int = 4
    space: bool = False
    merged: bool = False

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def numbers(self) -> int:
        return self.value_heads * self.key_dim * self.value_dim + (self.width - 1) * self.channels

    @property
    def products(self) -> tuple[Tensor, Tensor]:
        values = self.value_heads * self.value_dim
        into = self.channels + values + (1 if self.space else 2) * self.value_heads
        products = weight(self.dtype, 1, into, HIDDEN), weight(self.dtype, 2, HIDDEN, values)
        if not self.merged:
            return products
        first, second = (
            (one.float() + more.up @ more.down).to(self.dtype)
            for one, more in zip(products, low_ranks(products, 0), strict=True)
        )
        return first, second

    @property
    def weights(self) -> RecurrentWeights:
        rate = -random(6, self.value_heads).exp()
        channels, bias = random(4, self.channels, self.width) / 2, random(5, self.value_heads)
        if not self.space:
            return RecurrentWeights(random(3, self.value_dim), channels, bias, rate)
        norm, direct = random(3, self.value_heads * self.value_dim), random(11, self.value_heads)
        return RecurrentWeights(norm, channels, bias, rate, random(12, self.channels), direct)

    @property
    def x(self) -> Tensor:
        return random(7, LENGTH, HIDDEN)

    def half(self, library: KernelLibrary) -> RecurrentHalf:
        shape = RecurrentShape(self.key_heads, self.value_heads, self.key_dim, self.value_dim, self.width, 1, EPSILON)
        own = [MatrixAdapters((len(one),)) for one in self.products]
        into, out = (held.of(pack(one)) for held, one in zip(own, self.products, strict=True))
        for number in range(2):
            for held, one in zip(own, low_ranks(self.products, number), strict=True):
                held.made([one], Arena()).put(number)
        half = AdaptedHalf(library, (into, out), self.weights, Norms(EPSILON, random(8, HIDDEN)), shape)
        half.own = own
        return half

    def pool(self, blocks: int) -> Tensor:
        """States that were never written: all their bits make NaN. Other numbers lie between blocks."""
        whole = torch.empty(blocks, LAYERS * self.numbers + 24)
        whole.view(torch.uint8).fill_(255)
        return whole[:, 8:-16]

    def computed(self, half: RecurrentHalf, cuts: Sequence[int], adapter: int = NO_ADAPTER) -> tuple[Tensor, Tensor]:
        """The results, and the states behind each block, with an adapter of the half."""
        pool, blocks = self.pool(5), [3, 1, 4]
        hidden, start = self.x, 0
        for part in hidden.split(list(cuts)):
            half(part, tile(self.dtype, pool, [(start, len(part), blocks)], [adapter]))
            start += len(part)
        return hidden, pool[blocks, self.numbers :].clone()

    def expected(self) -> tuple[Tensor, Tensor]:
        """The same by torch, in float32."""
        (into, out), own, values = (
            (one.float() for one in self.products),
            self.weights,
            self.value_heads * self.value_dim,
        )
        normed = rms_norm(self.x, random(8, HIDDEN), EPSILON, self.dtype).float()
        sizes = (self.channels, values, *[self.value_heads] * (1 if self.space else 2))
        mixed, gates, *strengths, times = F.linear(normed, into).split(sizes, dim=1)
        steps = F.softplus(times + own.bias)
        decays, made, states = (own.rate * steps).exp(), [], []
        matrix, recent = (
            torch.zeros(self.value_heads, self.key_dim, self.value_dim),
            torch.zeros(self.width - 1, self.channels),
        )
        keys = self.key_heads * self.key_dim
        for rows in torch.arange(LENGTH).split(TOKENS):
            convolved = causal_convolution(recent, mixed[rows], own.channels, own.channel_bias)
            q, k, v = (part.reshape(len(rows), -1, dim) for part, dim in zip(
                convolved.split((keys, keys, values), dim=1), (self.key_dim, self.key_dim, self.value_dim), strict=True
            ))  # fmt: skip
            if own.direct is None:
                q, k = unit(q) * self.key_dim**-0.5, unit(k)
                made.append(gated_delta(q, k, v, decays[rows], strengths[0][rows].sigmoid(), matrix))
            else:
                read = state_space(q, k, v * steps[rows].unsqueeze(-1), decays[rows], matrix)
                made.append(read + v * own.direct.unsqueeze(-1))
            states.append(torch.cat((matrix.flatten(), recent.flatten())))
        opened, whole = F.silu(gates).view(LENGTH, -1, self.value_dim), torch.cat(made)
        if self.space:
            groups = (whole * opened).view(LENGTH, self.key_heads, -1)
            gated = rms_norm(groups, own.norm.view(self.key_heads, -1), EPSILON, FLOAT32)
        else:
            gated = rms_norm(whole, own.norm, EPSILON, FLOAT32) * opened
        return self.x + F.linear(gated.flatten(1).to(self.dtype).float(), out), torch.stack(states)


CASES = {
    "float32": RecurrentCase(FLOAT32),
    "bfloat16": RecurrentCase(BFLOAT16),
    "a head for each key": RecurrentCase(FLOAT32, 3, 3, 32, 16, 3),
    "many channels": RecurrentCase(BFLOAT16, 1, 2, 64, 48),
    "a state space": RecurrentCase(FLOAT32, space=True),
    "a state space of one group": RecurrentCase(BFLOAT16, 1, 5, 32, 16, 3, space=True),
}
CUTS = ([1] * 30 + [4, 31, 25], [89, 1])


def low_ranks(products: tuple[Tensor, Tensor], number: int) -> list[LowRank]:
    """One of two adapters of the products, of ranks of which one is odd."""
    rank, seed, made = 7 + 9 * number, 20 + 4 * number, list[LowRank]()
    for place, (outputs, inputs) in enumerate(one.shape for one in products):
        down = random(seed + place, rank, inputs) * inputs**-0.5
        made.append(LowRank(down, random(seed + 2 + place, outputs, rank) / 4))
    return made


def tile(
    dtype: torch.dtype,
    states: Tensor,
    spans: Sequence[tuple[int, int, list[int]]],
    adapters: Sequence[int] = (NO_ADAPTER,) * 9,
) -> KernelTile:
    """A tile without keys and values, whose spans have these adapters."""
    own = [StateSpan(*span) for span in spans]
    pool = torch.zeros(1, 1, 2, 1, 8, 16, dtype=dtype)
    return KernelTile(
        pool,
        [TileSpan(span[0], span[1], [0] * 12, adapter) for span, adapter in zip(spans, adapters, strict=False)],
        dtype,
        states=TileStates(states, TOKENS, own),
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_results_and_states_are_right_and_in_any_cutting_the_same(library: KernelLibrary, case: RecurrentCase) -> None:
    half, (expected, left) = case.half(library), case.expected()
    whole, states = case.computed(half, [LENGTH])
    tolerance = 2e-5 if case.dtype == FLOAT32 else 3e-2
    assert (whole - expected).norm() / (expected - case.x).norm() < tolerance
    assert (states - left).norm() / left.norm() < tolerance
    for cuts in CUTS:
        again, after = case.computed(half, cuts)
        assert torch.equal(again, whole) and torch.equal(after, states)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_threads_change_nothing(one_thread: KernelLibrary, three_threads: KernelLibrary, case: RecurrentCase) -> None:
    whole, states = case.computed(case.half(one_thread), [LENGTH])
    for cuts in ([LENGTH], CUTS[0]):
        again, after = case.computed(case.half(three_threads), cuts)
        assert torch.equal(again, whole) and torch.equal(after, states)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "a state space of one group"])
def test_rows_with_an_adapter_equal_merged_weights(library: KernelLibrary, name: str) -> None:
    case = CASES[name]
    half, (expected, left) = case.half(library), replace(case, merged=True).expected()
    whole, states = case.computed(half, [LENGTH], 0)
    tolerance = 2e-5 if case.dtype == FLOAT32 else 3e-2
    assert (whole - expected).norm() / (expected - case.x).norm() < tolerance
    assert (states - left).norm() / left.norm() < tolerance
    assert (case.computed(half, [LENGTH])[1] - states).norm() / left.norm() > 0.1
    for cuts in CUTS:
        again, after = case.computed(half, cuts, 0)
        assert torch.equal(again, whole) and torch.equal(after, states)


@pytest.mark.parametrize("adapters", [(NO_ADAPTER,) * 4, (0, NO_ADAPTER, 1, 0)])
def test_sequences_in_one_tile_know_nothing_of_each_other(one_thread: KernelLibrary, adapters: tuple[int, ...]) -> None:
    case = CASES["bfloat16"]
    half, pool = case.half(one_thread), case.pool(9)
    pool[:] = random(9, 9, LAYERS * case.numbers)
    spans = [(0, 5, [1]), (40, 1, [2, 3]), (30, 40, [8, 5, 6]), (64, 1, [0, 4, 7])]
    rows = random(10, 47, HIDDEN)
    apart, parts = pool.clone(), [part.clone() for part in rows.split([count for _, count, _ in spans])]
    half(rows, tile(case.dtype, pool, spans, adapters))
    for part, span, adapter in zip(parts, spans, adapters, strict=True):
        half(part, tile(case.dtype, apart, [span], [adapter]))
    assert torch.equal(rows, torch.cat(parts))
    assert torch.equal(pool, apart)
