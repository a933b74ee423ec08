# SPDX-License-Identifier: Apache-2.0
"""Draws behind a package's filters have the ids of our own, from the same numbers; a filter that is wrong is told."""

import pytest
import torch
from step_packages import FakeSampling

from pontil.gpu_ops.draws.filtered_draws import NEARLY_TIES, TOGETHER, FilteredDraws
from pontil.gpu_ops.draws.sampling import draw
from pontil.gpu_ops.parameters.draws import ALL_KINDS, DeviceDraws, DrawKinds

CPU = torch.device("cpu")


def draws_of(
    count: int, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, floor: float = 0.0
) -> DeviceDraws:
    uniform = torch.rand(count, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    real = torch.ones(count, dtype=torch.float64)
    whole = torch.full((count,), top_k, dtype=torch.int32)
    return DeviceDraws(
        torch.arange(count, dtype=torch.int32) % 5, temperature * real, whole, top_p * real, floor * real, uniform
    )


def both(logits: torch.Tensor, draws: DeviceDraws, kinds: DrawKinds = ALL_KINDS) -> tuple[list[int], list[int]]:
    made = [torch.full((len(draws.row),), -7, dtype=torch.int32) for _ in range(2)]
    FilteredDraws(FakeSampling().package)(logits, draws, made[0], kinds)
    draw(logits, draws, made[1], kinds)
    return made[0].tolist(), made[1].tolist()


CUTS = (
    {"top_k": 7},
    {"top_p": 0.8},
    {"top_k": 40, "top_p": 0.9, "floor": 0.05},
    {"floor": 0.2},
    {"temperature": 0.0, "top_k": 3, "top_p": 0.5, "floor": 0.1},
    {"top_k": 10_000, "top_p": 1e-6},
)


@pytest.mark.parametrize("cuts", CUTS)
def test_ids_are_our_own(cuts: dict[str, float]) -> None:
    logits = 2 * torch.randn(5, 300, generator=torch.Generator().manual_seed(5))
    mine, wanted = both(logits, draws_of(TOGETHER + 9, **cuts))  # type: ignore[arg-type]
    assert mine == wanted


def test_rows_that_allow_no_probabilities_and_draws_that_are_none() -> None:
    logits = torch.randn(5, 60, generator=torch.Generator().manual_seed(6))
    logits[0], logits[1, 7], logits[2, 3:] = -torch.inf, torch.inf, torch.nan
    draws = draws_of(40, top_p=0.9)
    draws.row[10] = draws.row[39] = -1
    mine, wanted = both(logits, draws)
    assert mine[10] == mine[39] == -7
    # Of a row of equal ones all ids stay, where ours cuts the last ones.
    alike = [place for place in range(40) if place % 5]
    assert [mine[place] for place in alike] == [wanted[place] for place in alike]


def test_uncut_draws_are_left_to_our_kernels() -> None:
    fake = FakeSampling()
    out = torch.empty(5, dtype=torch.int32)
    FilteredDraws(fake.package)(torch.zeros(5, 50), draws_of(5), out, DrawKinds(True, False, False))
    assert not fake.calls


@pytest.mark.parametrize("vocabulary", [300, 900])
def test_a_comparison_tells_a_wrong_filter(vocabulary: int) -> None:
    assert FilteredDraws(FakeSampling().package).differing(vocabulary, CPU) == 0
    for fault in (FakeSampling(more=1), FakeSampling(less=0.01)):
        assert FilteredDraws(fault.package).differing(vocabulary, CPU) > 3 * NEARLY_TIES
