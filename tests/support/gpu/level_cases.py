# SPDX-License-Identifier: Apache-2.0
"""Products with whole numbers of 4 and 8 bits, in groups of every kind that kernels tell apart."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from ladder import Budget, KernelCase, Results
from product_cases import TILES, alone, counted, drawn, empty, grouped, on, placed, product, real_experts, tolerance_of
from torch import Tensor

from pontil.gpu_ops.products.level_weights import LevelWeights
from pontil.gpu_ops.products.scaled_weights import StoredHead
from pontil.gpu_ops.triton import products
from pontil.gpu_ops.triton.device_weights import DeviceWeights


def exact(kind: str, rows: int, dtype: torch.dtype, make: Callable[[], LevelWeights]) -> KernelCase:
    """The bits of a product with the weights as numbers: each is rounded once, and sums have one order."""

    def both(device: torch.device, weights: DeviceWeights) -> Results:
        x = drawn(1, rows, weights.inputs).to(dtype).to(device)
        return (products.product(x, weights),)

    return KernelCase(
        f"product-exact-{kind}", lambda device: both(device, on(device, make(), dtype, None)),
        tolerance=0, compiled=False,
        whole=lambda device: both(device, DeviceWeights(make().dense(dtype).to(device))),
    )  # fmt: skip


def by_rows(name: str, rows: int, make: Callable[[], LevelWeights]) -> KernelCase:
    """The tile for few rows, or for many."""

    def some() -> Tensor:
        return drawn(1, rows, make().shape[1]).bfloat16()

    def call(device: torch.device) -> Results:
        weights = on(device, make(), torch.bfloat16, None)
        return (products.product(some().to(device), weights, by_rows=True),)

    def expected() -> Results:
        return (F.linear(some().float(), make().dense(torch.bfloat16).float()).bfloat16(),)

    return KernelCase(f"product-by-rows-{name}", call, expected, tolerance_of(torch.bfloat16), compiled=False)


def head(make: Callable[[], LevelWeights]) -> KernelCase:
    """Rows float32, of which none is rounded: one that was would differ by ten times as much. In float16, since the
    interpreter cuts bfloat16 off."""

    def call(device: torch.device) -> Results:
        made = make()
        stored = replace(made, numbers=made.numbers.to(device), factors=made.factors.to(device))
        return (StoredHead(stored, torch.float16, device, None)(drawn(1, 3, made.shape[1]).to(device)),)

    def expected() -> Results:
        made = make()
        return (drawn(1, 3, made.shape[1]) @ made.dense(torch.float16).float().T,)

    return KernelCase("product-head-stored", call, expected, 2e-5, compiled=False)


def real(kind: str, rows: int, budget: Budget) -> KernelCase:
    """A product of true sizes, in groups of 128 and of 32."""

    def call(device: torch.device) -> Results:
        x = torch.empty(rows, 4096, dtype=torch.bfloat16, device=device)
        return tuple(
            products.product(x, empty(kind, x.dtype, device, 6144, 4096, group=group), by_rows=True)
            for group in (128, 32)
        )

    return KernelCase(f"product-real-{kind}-{rows}-rows", call, budget=budget, interpreted=False)


FOURS, EIGHTS, ODD = (partial(counted, 3, 40, 192, *kind) for kind in ((4, 32), (8, 64), (4, 24)))
TABLE = partial(placed, 3, 40, 192)
CASES = [
    *(product(kind, (3, 24, 96), torch.float16, biased=True) for kind in ("fours", "eights", "fours-odd")),
    product("fours-channel", (2, 72, 136), torch.float16),
    product("eights-ordered", (5, 24, 80), torch.float32),
    product("table", (3, 24, 96), torch.float16),
    exact("fours", 3, torch.float16, FOURS),
    exact("eights", 2, torch.float16, EIGHTS),
    exact("odd", 2, torch.float16, ODD),
    exact("table", 2, torch.float16, TABLE),
    head(TABLE),
    by_rows("one", 1, FOURS),
    by_rows("few", 19, EIGHTS),
    by_rows("many", 260, FOURS),
    alone("fours"),
    grouped("fours", "fours", torch.float16),
    grouped("table", "table", torch.float16),
    *(real(kind, rows, TILES) for kind in ("fours", "eights", "float8") for rows in (1, 64, 256)),
    # AMD's compiler keeps some scalars in lanes of a vector's register, with the tile of 64 rows alone.
    *(real("table", rows, replace(TILES, scalar_spills=16 if rows == 64 else 0)) for rows in (1, 64, 256)),
    real_experts("fours"),
    real_experts("table"),
]
