# SPDX-License-Identifier: Apache-2.0
"""Products, the choice of experts, and experts."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from ladder import Budget, KernelCase, Results
from torch import Tensor

from pontil.gpu_ops import activation as activation_reference
from pontil.gpu_ops.kernels.weights.quantized import QuantizedWeights
from pontil.gpu_ops.parameters.experts import ExpertChoice
from pontil.gpu_ops.products import experts as experts_reference
from pontil.gpu_ops.products import level_weights
from pontil.gpu_ops.products import routing as routing_reference
from pontil.gpu_ops.products.level_weights import LevelWeights
from pontil.gpu_ops.products.scaled_weights import Fp4Weights, PackedWeights, PlainWeights, ScaledWeights
from pontil.gpu_ops.triton import experts, products, routing
from pontil.gpu_ops.triton.device_weights import DeviceWeights

CPU = torch.device("cpu")
Stored = PlainWeights | PackedWeights | LevelWeights
TILES = Budget(must_have={"nvidia": ("cp.async",), "amd": ("v_mfma",)})


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def whole(seed: int, low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def plain(seed: int, outputs: int, inputs: int) -> Stored:
    return PlainWeights(drawn(seed, outputs, inputs) / inputs**0.5)


def float8(seed: int, outputs: int, inputs: int, group: int = 24) -> Stored:
    """Every finite float of 8 bits occurs, by default in groups that no tile is made of."""
    bits = whole(seed, 0, 256, outputs, inputs).to(torch.uint8)
    numbers = bits.masked_fill(bits & 127 == 127, 0).view(torch.float8_e4m3fn)
    return ScaledWeights(numbers, drawn(seed, outputs, -(-inputs // group)).abs() / 128 / inputs**0.5, group)


def float4(seed: int, outputs: int, inputs: int) -> Stored:
    groups = inputs // 32
    numbers = whole(seed, 0, 256, outputs, groups, 16).to(torch.uint8)
    return Fp4Weights(numbers, whole(seed + 2, 121, 126, outputs, groups).to(torch.uint8))


def counted(
    seed: int, outputs: int, inputs: int, bits: int = 4, group: int | None = None, ordered: bool = False
) -> LevelWeights:
    """Whole numbers with scales and zeros, as directories have them."""
    (low, high), groups = (0, 16) if bits == 4 else (-128, 128), inputs // (group or inputs)
    numbers = whole(seed, low, high, outputs, inputs).to(torch.uint8 if bits == 4 else torch.int8)
    scales = (drawn(seed + 1, outputs, groups).abs() / 8 / inputs**0.5).half().float()
    offsets = -scales * whole(seed + 2, low, high, outputs, groups)
    order = torch.randperm(inputs, generator=torch.Generator().manual_seed(seed)) if ordered else None
    made = level_weights.on_device(QuantizedWeights(numbers, scales, offsets, order=order), CPU)
    assert isinstance(made, LevelWeights)
    return made


def placed(seed: int, outputs: int, inputs: int, group: int = 32) -> LevelWeights:
    """Places in a table of 15 numbers, the last of which stands at 14."""
    table = torch.tensor([*range(-127, -10, 13), 1, 25, 60, 90, 127], dtype=torch.int8)
    places = whole(seed, 0, len(table), outputs, inputs).to(torch.uint8)
    scales = drawn(seed + 1, outputs, inputs // group) / 64 / inputs**0.5
    made = level_weights.on_device(QuantizedWeights(places, scales, torch.zeros_like(scales), table=table), CPU)
    assert isinstance(made, LevelWeights) and made.tabled
    return made


MAKERS: dict[str, Callable[[int, int, int], Stored]] = {
    "plain": plain,
    "float8": float8,
    "float8-tiles": partial(float8, group=128),
    "float4": float4,
    "fours": partial(counted, group=8),
    "fours-odd": partial(counted, group=24),
    "fours-channel": counted,
    "table": placed,
    "eights": partial(counted, bits=8, group=32),
    "eights-ordered": partial(counted, bits=8, group=16, ordered=True),
}


def on(device: torch.device, stored: Stored, dtype: torch.dtype, bias: Tensor | None) -> DeviceWeights:
    made = stored.on_device(dtype, None if bias is None else bias.to(device))
    scales, order = (None if one is None else one.to(device) for one in (made.scales, made.order))
    return replace(made, numbers=made.numbers.to(device), scales=scales, order=order)


def product(
    kind: str, shape: tuple[int, int, int], dtype: torch.dtype, biased: bool = False, compiled: bool = False
) -> KernelCase:
    rows, outputs, inputs = shape
    bias = drawn(5, outputs).to(dtype) if biased else None

    def some() -> tuple[Tensor, Stored]:
        # Rows with others beside them.
        return drawn(1, rows, inputs + 8).to(dtype)[:, :inputs], MAKERS[kind](3, outputs, inputs)

    def call(device: torch.device) -> Results:
        x, stored = some()
        return (products.product(x.to(device), on(device, stored, dtype, bias)),)

    def expected() -> Results:
        x, stored = some()
        made = F.linear(x.float(), stored.dense(dtype).float(), None if bias is None else bias.float())
        return (made.to(dtype),)

    name = f"product-{kind}-{'x'.join(map(str, shape))}-{dtype}".replace("torch.", "")
    return KernelCase(name, call, expected, tolerance_of(dtype), TILES, compiled=compiled)


def alone(kind: str) -> KernelCase:
    """A row has the same bits at any place among any number of rows."""
    rows = drawn(1, 70, 136).bfloat16()

    def weights(device: torch.device) -> DeviceWeights:
        return on(device, MAKERS[kind](3, 40, 136), torch.bfloat16, None)

    def call(device: torch.device) -> Results:
        parts = (rows[:1], rows[1:20], rows[20:])
        return (torch.cat([products.product(part.to(device), weights(device)) for part in parts]),)

    def whole(device: torch.device) -> Results:
        return (products.product(rows.to(device), weights(device)),)

    return KernelCase(f"product-alone-{kind}", call, tolerance=0, compiled=False, whole=whole)


def head(name: str, rows: int, outputs: int, inputs: int) -> KernelCase:
    """Rows float32 times weights of 16 bits, as the head of a model has them. Rows that were only rounded would differ
    by a hundred times as much."""

    def call(device: torch.device) -> Results:
        x, weight = drawn(1, rows, inputs), drawn(2, outputs, inputs).bfloat16()
        return (products.product(x.to(device), DeviceWeights(weight.to(device))),)

    def expected() -> Results:
        return (drawn(1, rows, inputs) @ drawn(2, outputs, inputs).bfloat16().float().T,)

    return KernelCase(f"product-head-{name}", call, expected, 2e-5, TILES, compiled=False)


def head_alone() -> KernelCase:
    """A row of the head has the same bits at any place among any number of rows."""
    rows, weight = drawn(1, 70, 136), drawn(2, 40, 136).bfloat16()

    def call(device: torch.device) -> Results:
        parts, made = (rows[:1], rows[1:20], rows[20:]), DeviceWeights(weight.to(device))
        return (torch.cat([products.product(part.to(device), made) for part in parts]),)

    def whole(device: torch.device) -> Results:
        return (products.product(rows.to(device), DeviceWeights(weight.to(device))),)

    return KernelCase("product-head-alone", call, tolerance=0, compiled=False, whole=whole)


def real_head() -> KernelCase:
    def call(device: torch.device) -> Results:
        rows, weight = torch.empty(256, 4096, device=device), torch.empty(128256, 4096, dtype=torch.bfloat16)
        return (products.product(rows, DeviceWeights(weight.to(device))),)

    return KernelCase("product-real-head", call, budget=TILES, interpreted=False)


def tolerance_of(dtype: torch.dtype) -> float:
    return {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]


def product_of_heads() -> KernelCase:
    def some(device: torch.device) -> tuple[Tensor, Tensor]:
        return drawn(1, 3, 2, 40)[..., :24].to(device), drawn(2, 2, 24, 12).to(device)

    return KernelCase(
        "product-heads", lambda device: (products.product_of_heads(*some(device)),),
        lambda: (torch.einsum("rhi,hio->rho", *some(CPU)),), compiled=False,
    )  # fmt: skip


def chosen(name: str, count: int, per_token: int, normalize: bool, compiled: bool = False, **ways: Any) -> KernelCase:
    biased = bool(ways.pop("biased", False))

    def some(device: torch.device) -> tuple[Tensor, ExpertChoice]:
        bias = drawn(1, count).to(device) if biased else None
        return drawn(count, 3, count).to(device), ExpertChoice(count, per_token, normalize=normalize, bias=bias, **ways)

    def call(device: torch.device) -> Results:
        return routing.choose_experts(*some(device), smallest_sum=0.0)

    def expected() -> Results:
        return routing_reference.choose_experts(*some(CPU))

    return KernelCase(f"routing-{name}", call, expected, 1e-6, Budget(128), compiled=compiled)


def sorted_choices() -> KernelCase:
    """More choices than a program reads at a time, of experts some of which are elsewhere, and one that none chose."""

    def some() -> Tensor:
        numbers = whole(1, 0, 9, 1300)
        return numbers.masked_fill(numbers == 4, 2)

    def call(device: torch.device) -> Results:
        order, starts = experts.sort_by_expert(some().to(device), 3, 3)
        return order[: int(starts[-1])], starts

    def expected() -> Results:
        parts = [(some() == number).nonzero().flatten() for number in (3, 4, 5)]
        starts = torch.tensor([0, *(len(part) for part in parts)]).cumsum(0)
        return torch.cat(parts).int(), starts.int()

    return KernelCase("experts-sorted", call, expected, 0, compiled=False)


def grouped(
    name: str, kind: str, dtype: torch.dtype, *, rows: int = 21, clamp: tuple[float, float] | None = None,
    first: int = 0, sizes: tuple[int, int] = (64, 32),
) -> KernelCase:  # fmt: skip
    """Three experts here, of six; the first one here has more rows than a tile where there are many."""
    hidden, inner = sizes
    count, per_token = 3, 2

    def choices() -> Tensor:
        others = whole(7, 1, 6, rows, 1)
        return torch.cat((torch.where(whole(8, 0, 5, rows, 1) > 0, 0, others % 5 + 1), (others + 2) % 5 + 1), 1)

    def layer() -> list[tuple[list[Stored], list[Tensor]]]:
        made = []
        for outputs, inputs in ((2 * inner, hidden), (hidden, inner)):
            stored = [MAKERS[kind](10 * number + inputs, outputs, inputs) for number in range(count)]
            made.append((stored, [drawn(number, outputs).to(dtype) / 4 for number in range(count)]))
        return made

    def call(device: torch.device) -> Results:
        gate_up, down = (
            experts_reference.stacked(
                [on(device, one, dtype, bias if clamp else None) for one, bias in zip(stored, biases, strict=True)]
            )
            for stored, biases in layer()
        )
        x = drawn(2, rows, hidden).to(dtype).to(device)
        numbers = choices().to(device)
        made = experts.expert_results(x, numbers, gate_up, down, first, clamp)
        own = (numbers >= first) & (numbers < first + count)
        return (torch.where(own.unsqueeze(-1), made, 0.0),)

    def expected() -> Results:
        (gate_ups, up_biases), (downs, down_biases) = layer()
        x, results = drawn(2, rows, hidden).to(dtype).float(), torch.zeros(rows, per_token, hidden)
        for row, places in enumerate(choices().tolist()):
            for place, number in enumerate(places):
                if not first <= number < first + count:
                    continue
                at = number - first
                up = F.linear(
                    x[row : row + 1], gate_ups[at].dense(dtype).float(), up_biases[at].float() if clamp else None
                )
                if clamp is None:
                    inside = activation_reference.silu_and_mul(up)
                else:
                    inside = activation_reference.clamped_swiglu(up, *clamp)
                inside = inside.to(dtype).float()
                down = F.linear(inside, downs[at].dense(dtype).float(), down_biases[at].float() if clamp else None)
                results[row, place] = down[0]
        return (results,)

    return KernelCase(f"experts-{name}", call, expected, tolerance_of(dtype), compiled=False)


def experts_alone() -> KernelCase:
    """A row's results have the same bits in any company: here one expert has several tiles of rows, or few."""
    rows, count = 70, 2
    weights = [DeviceWeights(drawn(3, count, 48, 40).half()), DeviceWeights(drawn(4, count, 40, 24).half())]

    def results(start: int, stop: int, device: torch.device) -> Tensor:
        x, numbers = drawn(1, rows, 40).half(), whole(2, 0, 2, rows, 1)
        both = torch.cat((numbers, 1 - numbers), 1)[start:stop]
        gate_up, down = (DeviceWeights(one.numbers.to(device)) for one in weights)
        return experts.expert_results(x[start:stop].to(device), both.to(device), gate_up, down, 0)

    bounds = (0, 1, 3, 40, rows)
    return KernelCase(
        "experts-alone",
        lambda device: (torch.cat([results(*part, device) for part in zip(bounds, bounds[1:], strict=False)]),),
        tolerance=0, compiled=False, whole=lambda device: (results(0, rows, device),),
    )  # fmt: skip


def real_product(kind: str, dtype: torch.dtype, budget: Budget) -> KernelCase:
    def call(device: torch.device) -> Results:
        rows = torch.empty(256, 4096, dtype=dtype, device=device)
        return (products.product(rows, empty(kind, dtype, device, 6144, 4096)),)

    return KernelCase(f"product-real-{kind}-{dtype}".replace("torch.", ""), call, budget=budget, interpreted=False)


def empty(kind: str, dtype: torch.dtype, device: torch.device, *shape: int, group: int = 128) -> DeviceWeights:
    """Weights of a true size, with biases where they have 4 bits."""
    *count, outputs, inputs = shape

    def made(size: int, of: torch.dtype) -> Tensor:
        return torch.empty(*count, outputs, size, dtype=of, device=device)

    if kind == "plain":
        return DeviceWeights(made(inputs, dtype))
    if kind == "float8":
        return DeviceWeights(made(inputs, torch.float8_e4m3fn), None, made(inputs // group, torch.float32), group)
    if kind in ("fours", "eights", "table"):
        numbers = made(inputs, torch.int8) if kind == "eights" else made(inputs // 2, torch.uint8)
        words = inputs // group + (6 if kind == "table" else 2)
        return DeviceWeights(numbers, None, made(words, torch.int32), group, tabled=kind == "table")
    bias = torch.empty(*count, outputs, dtype=dtype, device=device)
    return DeviceWeights(made(inputs // 2, torch.uint8), bias, made(inputs // 32, torch.uint8))


def real_experts(kind: str) -> KernelCase:
    def call(device: torch.device) -> Results:
        x = torch.empty(32, 2048, dtype=torch.bfloat16, device=device)
        numbers = torch.empty(32, 8, dtype=torch.int64, device=device)
        gate_up, down = (empty(kind, x.dtype, device, 128, *sizes) for sizes in ((1536, 2048), (2048, 768)))
        made = experts.expert_results(x, numbers, gate_up, down, 0)
        return (experts.add_by_ratings(made, torch.empty(32, 8, device=device)),)

    # Of a processor of AMD, which has 512.
    budget = replace(TILES, registers=320)
    return KernelCase(f"experts-real-{kind}", call, budget=budget, interpreted=False)


def added() -> KernelCase:
    def some(device: torch.device) -> tuple[Tensor, Tensor]:
        return drawn(1, 3, 4, 1100).to(device), drawn(2, 3, 4).to(device)

    return KernelCase(
        "experts-added", lambda device: (experts.add_by_ratings(*some(device)),),
        lambda: (experts_reference.add_by_ratings(*some(CPU)),), 1e-6, compiled=False,
    )  # fmt: skip


CASES = [
    product("plain", (3, 24, 40), torch.float32, biased=True),
    product("plain", (70, 200, 72), torch.bfloat16),
    product("float8", (1, 24, 60), torch.bfloat16, biased=True),
    product("float8-tiles", (2, 72, 256), torch.float32),
    product("float4", (2, 24, 96), torch.float16),
    alone("plain"),
    head("few", 3, 72, 200),
    head("more-than-a-tile", 66, 24, 64),
    head_alone(),
    real_head(),
    product_of_heads(),
    chosen("softmax", 6, 2, True),
    chosen("all-ways", 40, 3, True, sigmoid=True, groups=5, kept_groups=2, group_best=2, factor=2.5, biased=True),
    chosen("one-group-best", 256, 8, False, groups=8, kept_groups=4, biased=True, compiled=True),
    sorted_choices(),
    added(),
    grouped("plain", "plain", torch.float32),
    grouped("elsewhere", "plain", torch.bfloat16, rows=50, first=2),
    grouped("one-row", "plain", torch.float16, rows=1, sizes=(40, 24)),
    grouped("clamped-float4", "float4", torch.bfloat16, clamp=(1.702, 7.0), sizes=(64, 96)),
    grouped("float8", "float8", torch.float32),
    experts_alone(),
    real_product("plain", torch.bfloat16, TILES),
    real_product("plain", torch.float32, Budget()),
    real_product("float8", torch.bfloat16, TILES),
    real_experts("plain"),
    real_experts("float4"),
    real_experts("float8"),
]
