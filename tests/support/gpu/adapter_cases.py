# SPDX-License-Identifier: Apache-2.0
"""Adapters of several ranks in one step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from ladder import Budget, KernelCase, Results
from product_cases import TILES, drawn, tolerance_of, whole
from torch import Tensor

from pontil.gpu_ops.activation import clamped_swiglu, silu_and_mul
from pontil.gpu_ops.kernels.tile import TileSpan, adapters_of_rows
from pontil.gpu_ops.parameters.adapters import NO_ADAPTER, LowRank
from pontil.gpu_ops.products.adapters import ProductAdapters, RowAdapters, row_tiles
from pontil.gpu_ops.products.device_adapters import DeviceAdapters
from pontil.gpu_ops.products.experts import GroupedExperts
from pontil.gpu_ops.triton.device_weights import DeviceWeights

CPU = torch.device("cpu")
# Of adapters by their numbers: the ranks of the product's parts, None where one leaves a part as it is.
RANKS: tuple[tuple[int | None, ...], ...] = ((5, 5, 7, None), (16, 40, 2, 3), (None,) * 4, (None, 64, None, 24))
PARTS = (200, 24, 4, 40)
# More rows of one adapter than a tile has, rows of none, one of an adapter that leaves this product as it is, and a
# prompt's rows around the position from which on they have theirs.
AROUND_START = adapters_of_rows([TileSpan(30, 9, range(3), 3, adapted_from=34)])
NUMBERS = [1, 0, NO_ADAPTER, 3, 2, *[1] * 19, NO_ADAPTER, 0, 3, *AROUND_START]


def parts_of(number: int, inputs: int, dtype: torch.dtype) -> list[LowRank | None]:
    """The numbers as kernels have them, so that both round alike."""
    made = list[LowRank | None]()
    for place, (rank, outputs) in enumerate(zip(RANKS[number], PARTS, strict=True)):
        if rank is None:
            made.append(None)
            continue
        down = drawn(10 * number + place, rank, inputs) / inputs**0.5
        up = drawn(10 * number + place + 5, outputs, rank) / rank**0.5
        made.append(LowRank(down.to(dtype).float(), up.to(dtype).float()))
    return made


def rows_of(inputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return drawn(1, len(NUMBERS), inputs).to(dtype), drawn(2, len(NUMBERS), sum(PARTS)).to(dtype)


def held_on(device: torch.device, inputs: int, dtype: torch.dtype) -> DeviceAdapters:
    """The adapters, after others that had their numbers."""
    held = DeviceAdapters(RowAdapters(device), PARTS, dtype, device)
    for number in (1, 3, 1, 0):
        held.remove(number)
        held.made(parts_of(number, inputs, dtype)).put(number)
    held.made(parts_of(1, inputs, dtype)).put(2)
    held.remove(2)
    return held


def mixed(dtype: torch.dtype, inputs: int) -> KernelCase:
    def call(device: torch.device) -> Results:
        held = held_on(device, inputs, dtype)
        held.rows.choose(NUMBERS)
        x, made = rows_of(inputs, dtype)
        return (held.add(x.to(device), made.to(device)),)

    def expected() -> Results:
        held = ProductAdapters(RowAdapters(), PARTS)
        for number in (0, 1, 3):
            held.made(parts_of(number, inputs, dtype)).put(number)
        held.rows.choose(NUMBERS)
        x, made = rows_of(inputs, dtype)
        return (held.add(x.float(), made.float()).to(dtype),)

    name = f"adapters-mixed-{inputs}-{dtype}".replace("torch.", "")
    return KernelCase(name, call, expected, tolerance_of(dtype), compiled=False)


def alone() -> KernelCase:
    """A row's results have the same bits in any company: beside rows of other adapters, of the same one, and of none,
    and where there are places for more rows."""
    inputs, dtype = 2200, torch.float16

    def results(chosen: Sequence[int], room: int, device: torch.device) -> Tensor:
        held = held_on(device, inputs, dtype)
        tiles = row_tiles([NUMBERS[row] for row in chosen], len(chosen) + room, 4)
        held.rows.place(*(torch.from_numpy(part).to(device) for part in tiles))
        x, made = rows_of(inputs, dtype)
        rows = list(chosen)
        return held.add(x[rows].to(device), made[rows].to(device))

    some = (3, 23, 1, 0, 2)

    def call(device: torch.device) -> Results:
        return (torch.cat([results([row], place, device) for place, row in enumerate(some)]),)

    return KernelCase(
        "adapters-alone", call, tolerance=0, compiled=False,
        whole=lambda device: (results(range(len(NUMBERS)), 0, device)[list(some)],),
    )  # fmt: skip


def real(dtype: torch.dtype, budget: Budget) -> KernelCase:
    """Queries, keys and values of a model of 8 billion weights, and its second product of an MLP."""

    def call(device: torch.device) -> Results:
        made = list[Tensor]()
        for inputs, outputs in ((4096, (4096, 1024, 1024)), (14336, (4096,))):
            held = DeviceAdapters(RowAdapters(device), outputs, dtype, device)
            held.rows.choose([0] * 64)
            x, results = (torch.empty(64, size, dtype=dtype, device=device) for size in (inputs, sum(outputs)))
            made.append(held.add(x, results))
        return tuple(made)

    return KernelCase(f"adapters-real-{dtype}".replace("torch.", ""), call, budget=budget, interpreted=False)


# Experts of which one is elsewhere, with parts of different ranks and one that an adapter leaves as it is.
EXPERTS, PER_TOKEN, FIRST = 3, 2, 1
EXPERT_RANKS: tuple[tuple[int | None, ...], ...] = ((5, 20, 3), (None, 16, None), (None, None, 24))


def expert_part(number: int, place: int, outputs: int, inputs: int, dtype: torch.dtype) -> LowRank | None:
    rank, seed = EXPERT_RANKS[number][place], 10 * number + place
    if rank is None:
        return None
    down, up = drawn(seed, EXPERTS, rank, inputs) / inputs**0.5, drawn(seed + 5, EXPERTS, outputs, rank) / rank**0.5
    return LowRank(down.to(dtype).float(), up.to(dtype).float())


@dataclass(frozen=True)
class AdaptedMixture:
    """The experts of a layer with adapters, by kernels and by torch."""

    dtype: torch.dtype
    hidden: int = 72
    inner: int = 40
    clamp: tuple[float, float] | None = None

    @property
    def weights(self) -> tuple[Tensor, Tensor]:
        shapes = (2 * self.inner, self.hidden), (self.hidden, self.inner)
        first, second = ((drawn(size, EXPERTS, size, ins) / ins**0.5).to(self.dtype) for size, ins in shapes)
        return first, second

    @property
    def x(self) -> Tensor:
        return drawn(1, len(NUMBERS), self.hidden).to(self.dtype)

    @property
    def choices(self) -> Tensor:
        """More of one expert than a tile has rows, and some of experts that are elsewhere."""
        others = whole(7, 0, 5, len(NUMBERS), 1)
        return torch.cat((torch.where(whole(8, 0, 4, len(NUMBERS), 1) > 0, 2, others), (others + 1) % 5), 1)

    @property
    def numbers(self) -> list[int]:
        return [min(number, len(EXPERT_RANKS) - 1) for number in NUMBERS]

    def parts(self, number: int) -> tuple[list[LowRank | None], list[LowRank | None]]:
        sizes = (self.inner, self.hidden), (self.inner, self.hidden), (self.hidden, self.inner)
        gate, up, down = (expert_part(number, place, *size, self.dtype) for place, size in enumerate(sizes))
        return [gate, up], [down]

    def call(self, device: torch.device, rows: Sequence[int]) -> Tensor:
        tile = RowAdapters(device)
        held = [DeviceAdapters(tile, sizes, self.dtype, device) for sizes in ((self.inner, self.inner), (self.hidden,))]
        for number in range(len(EXPERT_RANKS)):
            for one, parts in zip(held, self.parts(number), strict=True):
                one.made(parts).put(number)
        tile.choose([self.numbers[row] for row in rows])
        gate_up, down = (DeviceWeights(one.to(device)) for one in self.weights)
        experts = GroupedExperts(gate_up, down, FIRST, self.clamp, held)
        chosen = self.choices[list(rows)]
        own = (chosen >= FIRST) & (chosen < FIRST + EXPERTS)
        made = experts(self.x[list(rows)].to(device), chosen.to(device))
        return torch.where(own.to(device).unsqueeze(-1), made, 0.0)

    def expected(self) -> Tensor:
        results = torch.zeros(len(NUMBERS), PER_TOKEN, self.hidden)
        gate_ups, downs = self.weights
        for row, places in enumerate(self.choices.tolist()):
            number = self.numbers[row]
            none: list[LowRank | None] = [None]
            first, second = self.parts(number) if number != NO_ADAPTER else (2 * none, none)
            for place, expert in enumerate(places):
                at = expert - FIRST
                if not 0 <= at < EXPERTS:
                    continue
                x = self.x[row : row + 1].float()
                both = self.added(x @ gate_ups[at].float().T, x, first, at)
                inside = silu_and_mul(both) if self.clamp is None else clamped_swiglu(both, *self.clamp)
                inside = inside.to(self.dtype).float()
                results[row, place] = self.added(inside @ downs[at].float().T, inside, second, at)[0]
        return results

    def added(self, made: Tensor, x: Tensor, parts: Sequence[LowRank | None], at: int) -> Tensor:
        """The sums with what the adapters make of x, whose inner numbers are rounded as activations are."""
        more = [
            torch.zeros(1, made.shape[1] // len(parts))
            if one is None
            else (x @ one.down[at].T).to(self.dtype).float() @ one.up[at].T
            for one in parts
        ]
        return made + torch.cat(more, 1)


def of_experts(mixture: AdaptedMixture) -> KernelCase:
    return KernelCase(
        f"adapters-experts-{mixture.dtype}".replace("torch.", ""),
        lambda device: (mixture.call(device, range(len(NUMBERS))),), lambda: (mixture.expected(),),
        tolerance_of(mixture.dtype), compiled=False,
    )  # fmt: skip


def of_experts_alone() -> KernelCase:
    """A row's results have the same bits in any company."""
    mixture, some = AdaptedMixture(torch.float16), (3, 23, 1, 0, 2)
    return KernelCase(
        "adapters-experts-alone",
        lambda device: (torch.cat([mixture.call(device, [row]) for row in some]),), tolerance=0, compiled=False,
        whole=lambda device: (mixture.call(device, range(len(NUMBERS)))[list(some)],),
    )  # fmt: skip


def real_experts(dtype: torch.dtype, budget: Budget) -> KernelCase:
    """A layer of a model of 30 billion weights."""

    def call(device: torch.device) -> Results:
        tile, sizes = RowAdapters(device), ((768, 768), (2048,))
        tile.choose([0] * 32)
        held = [DeviceAdapters(tile, size, dtype, device) for size in sizes]
        shapes = (128, 1536, 2048), (128, 2048, 768)
        gate_up, down = (DeviceWeights(torch.empty(*shape, dtype=dtype, device=device)) for shape in shapes)
        x, chosen = torch.empty(32, 2048, dtype=dtype, device=device), torch.empty(32, 8, dtype=torch.int64)
        return (GroupedExperts(gate_up, down, 0, None, held)(x, chosen.to(device)),)

    return KernelCase("adapters-experts-real", call, budget=budget, interpreted=False)


CASES = [
    mixed(torch.float32, 72),
    mixed(torch.float16, 136),
    mixed(torch.bfloat16, 256),
    mixed(torch.float32, 2100),
    alone(),
    real(torch.bfloat16, Budget(must_have={"nvidia": ("cp.async", "mma"), "amd": ("v_mfma",)})),
    real(torch.float32, Budget()),
    of_experts(AdaptedMixture(torch.float32)),
    of_experts(AdaptedMixture(torch.bfloat16, 64, 64, (1.702, 2.0))),
    of_experts_alone(),
    real_experts(torch.bfloat16, replace(TILES, registers=320)),
]
