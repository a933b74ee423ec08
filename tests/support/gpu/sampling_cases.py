# SPDX-License-Identifier: Apache-2.0
"""Draws from logits."""

from collections.abc import Callable

import torch
from ladder import Budget, KernelCase, Results
from torch import Tensor

from pontil.gpu_ops.draws import sampling as reference
from pontil.gpu_ops.parameters.draws import ALL_KINDS, DeviceDraws, DrawKinds
from pontil.gpu_ops.triton import chunked_sampling, sampling

INFINITY = float("inf")
BUDGET = Budget(registers=128, shared=64 << 10)


def draws_of(rows: list[tuple[int, float, int, float, float, float]], device: torch.device) -> DeviceDraws:
    """Each: row, temperature, top_k, top_p, min_p, number."""
    row, temperature, top_k, top_p, min_p, uniform = zip(*rows, strict=True)
    whole = [torch.tensor(one, dtype=torch.int32, device=device) for one in (row, top_k)]
    real = [torch.tensor(one, dtype=torch.float64, device=device) for one in (temperature, top_p, min_p, uniform)]
    return DeviceDraws(whole[0], real[0], whole[1], *real[1:])


def case(
    name: str, logits: Callable[[], Tensor], rows: list[tuple[int, float, int, float, float, float]]
) -> KernelCase:
    def call(device: torch.device) -> Results:
        made = logits().to(device)
        out = torch.full((len(rows),), -7, dtype=torch.int32, device=device)
        sampling.draw(made, draws_of(rows, device), out)
        return (out,)

    def expected() -> Results:
        out = torch.full((len(rows),), -7, dtype=torch.int32)
        reference.draw(logits(), draws_of(rows, torch.device("cpu")), out)
        return (out,)

    return KernelCase(f"draw-{name}", call, expected, 0, BUDGET, compiled=False)


def normal(rows: int, size: int) -> Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(size)) * 4


def odd() -> Tensor:
    """Rows with ties, NaN, infinities, zeros of both signs, and nothing that is allowed."""
    logits = normal(8, 37).round()
    logits[0, 5] = logits[0, 30] = 40.0
    logits[1, ::3] = float("nan")
    logits[2, [7, 20, 21]] = INFINITY
    logits[3] = -INFINITY
    logits[4] = float("nan")
    logits[5] = 0.0
    logits[5, 1::2] = -0.0
    logits[6, 1:] = -INFINITY
    logits[7, 3] = -INFINITY
    return logits


def shaped(count: int) -> list[tuple[int, float, int, float, float, float]]:
    """Draws with every kind of cut, alone and together."""
    numbers = torch.rand(count, generator=torch.Generator().manual_seed(count), dtype=torch.float64).tolist()
    kinds = [
        (0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (0.7, 5, 1.0, 0.0), (1.3, 0, 0.8, 0.0), (1.0, 0, 1.0, 0.05),
        (1.5, 9, 0.9, 0.01), (2.0, 0, 0.95, 0.02), (1e-30, 0, 1.0, 0.0), (1.0, 1, 1.0, 0.0), (1.0, 1000, 1e-6, 1.0),
    ]  # fmt: skip
    return [(place, *kinds[place % len(kinds)], number) for place, number in enumerate(numbers)]


def on_odd_rows() -> list[tuple[int, float, int, float, float, float]]:
    found = [(row, *kind) for row in range(8) for kind in (
        (0.0, 0, 1.0, 0.0, 0.5), (1.0, 0, 1.0, 0.0, 0.0), (1.0, 3, 1.0, 0.0, 0.999), (1.0, 0, 0.6, 0.0, 0.7),
    )]  # fmt: skip
    return [*found, (-1, 1.0, 0, 1.0, 0.0, 0.5)]


CASES = [
    case("300", lambda: normal(20, 300), shaped(20)),
    case("one-row", lambda: normal(1, 97), [(0, 1.0, 0, 1.0, 0.0, number / 8) for number in range(8)]),
    case("several-blocks", lambda: normal(2, 9000), [(one, 3.0, 0, 0.99, 0.0, 0.9) for one in range(2)]),
    case("odd-rows", odd, on_odd_rows()),
]


def real_size(vocabulary: int) -> KernelCase:
    def call(device: torch.device) -> Results:
        numbers = torch.empty(8, dtype=torch.float64, device=device)
        whole = torch.empty(8, dtype=torch.int32, device=device)
        logits = torch.empty(1, 1, device=device).expand(8, vocabulary)
        sampling.draw(logits, DeviceDraws(whole, numbers, whole, numbers, numbers, numbers), whole)
        return ()

    return KernelCase(f"draw-vocabulary-{vocabulary}", call, budget=BUDGET, interpreted=False)


CASES.append(real_size(151936))


def in_chunks(
    name: str, logits: Callable[[], Tensor], rows: list[tuple[int, float, int, float, float, float]],
    kinds: DrawKinds = ALL_KINDS,
) -> KernelCase:  # fmt: skip
    """The ids that one program draws from a row, by chunks of it."""

    def drawn_by(make: Callable[[Tensor, DeviceDraws, Tensor], None], device: torch.device) -> Results:
        out = torch.full((len(rows),), -7, dtype=torch.int32, device=device)
        make(logits().to(device), draws_of(rows, device), out)
        return (out,)

    def chunked(made: Tensor, draws: DeviceDraws, out: Tensor) -> None:
        chunked_sampling.draw(made, draws, out, kinds, chunk=256)

    return KernelCase(
        f"draw-chunks-{name}", lambda device: drawn_by(chunked, device), tolerance=0, compiled=False,
        whole=lambda device: drawn_by(sampling.draw, device),
    )  # fmt: skip


def in_real_chunks() -> KernelCase:
    def call(device: torch.device) -> Results:
        numbers = torch.empty(8, dtype=torch.float64, device=device)
        whole = torch.empty(8, dtype=torch.int32, device=device)
        logits = torch.empty(1, 1, device=device).expand(8, 151936)
        chunked_sampling.draw(logits, DeviceDraws(whole, numbers, whole, numbers, numbers, numbers), whole)
        return ()

    budget = Budget(shared=64 << 10, scalar_spills=48)
    return KernelCase("draw-chunks-151936", call, budget=budget, interpreted=False)


KINDS = shaped(10)
WARM = [(0, 99.0, 0, 1.0, 0.5, one / 3) for one in range(3)]
CASES += [
    in_chunks("few", lambda: normal(10, 300), [KINDS[place] for place in (0, 5, 9)]),
    in_chunks("ties", lambda: torch.zeros(1, 700), [(0, 1.0, 400, 1.0, 0.0, 0.99)], DrawKinds(by_mass=False)),
    in_chunks("warm", lambda: normal(1, 700), WARM, DrawKinds(by_count=False, by_mass=False)),
    in_chunks("by-mass", lambda: normal(4, 300), [KINDS[3]], DrawKinds(by_count=False)),
    in_chunks("all", lambda: normal(20, 600), shaped(20)),
    in_chunks("odd-rows", lambda: odd().repeat(1, 8), on_odd_rows()),
    in_real_chunks(),
]
