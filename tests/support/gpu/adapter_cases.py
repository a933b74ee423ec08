# SPDX-License-Identifier: Apache-2.0
"""Adapters of several ranks in one step."""

from collections.abc import Sequence

import torch
from ladder import Budget, KernelCase, Results
from product_cases import drawn, tolerance_of
from torch import Tensor

from pontil.gpu_ops.kernels.tile import TileSpan, adapters_of_rows
from pontil.gpu_ops.parameters.adapters import NO_ADAPTER, LowRank
from pontil.gpu_ops.products.adapters import ProductAdapters, RowAdapters, row_tiles
from pontil.gpu_ops.products.device_adapters import DeviceAdapters

CPU = torch.device("cpu")
# Of adapters by their numbers: the ranks of the product's parts, None where one leaves a part as it is.
RANKS: tuple[tuple[int | None, ...], ...] = ((5, 5, None), (16, 40, 3), (None, None, None), (None, 64, 24))
PARTS = (200, 24, 40)
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


CASES = [
    mixed(torch.float32, 72),
    mixed(torch.float16, 136),
    mixed(torch.bfloat16, 256),
    mixed(torch.float32, 2100),
    alone(),
    real(torch.bfloat16, Budget(must_have={"nvidia": ("cp.async", "mma"), "amd": ("v_mfma",)})),
    real(torch.float32, Budget()),
]
