# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts by every instruction set: the reference's results, and the same bits in any company (C16)."""

from dataclasses import replace

import pytest
import torch
from layer_cases import ExpertCase, random

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.weights.matrix import pack
from pontil.gpu_ops.parameters.experts import ExpertChoice

FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
CASES = {
    "float32": ExpertCase(FLOAT32, ExpertChoice(5, 2)),
    "bfloat16": ExpertCase(BFLOAT16, ExpertChoice(40, 6, normalize=False), sandwich=True),
    "sigmoids": ExpertCase(BFLOAT16, ExpertChoice(7, 3, sigmoid=True, bias=random(9, 7), factor=2.5)),
    "one expert": ExpertCase(FLOAT32, ExpertChoice(1, 1)),
    "int8": ExpertCase(BFLOAT16, ExpertChoice(6, 2), int8=True),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_results_are_right_and_in_any_company_the_same(library: KernelLibrary, case: ExpertCase) -> None:
    half = case.half(library)
    whole, expected = case.computed(half), case.expected()
    error = (whole - expected).norm() / (expected - case.x).norm()
    assert error < (2e-5 if case.dtype == FLOAT32 else 3e-2)
    for start, end in ((0, 1), (7, 8), (9, 11), (20, 53), (53, 70)):
        assert torch.equal(case.computed(half, slice(start, end)), whole[start:end])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_threads_change_nothing(one_thread: KernelLibrary, three_threads: KernelLibrary, case: ExpertCase) -> None:
    assert torch.equal(case.computed(case.half(three_threads)), case.computed(case.half(one_thread)))


@pytest.mark.parametrize(("group_best", "kept"), [(1, (0, 1, 2, 3)), (2, (4, 5, 6, 7))])
def test_experts_come_from_the_best_groups(one_thread: KernelLibrary, group_best: int, kept: tuple[int, ...]) -> None:
    """The first two groups have the highest experts, the last two the highest sums of two."""
    products = torch.tensor([9.0, 0, 8, 0, 6, 5, 7, 5])
    grouped = ExpertChoice(8, 2, sigmoid=True, groups=4, kept_groups=2, group_best=group_best)
    only = products.where(torch.tensor([number in kept for number in range(8)]), -100.0)
    found, expected = (
        computed_with(one_thread, choice, bias)
        for choice, bias in ((grouped, products), (replace(grouped, groups=1), only))
    )
    assert torch.equal(found, expected)


def computed_with(library: KernelLibrary, choice: ExpertChoice, products: torch.Tensor) -> torch.Tensor:
    """The results of rows that all have these products of the router."""
    case = ExpertCase(FLOAT32, choice, rows=3)
    half = case.half(library)
    router = pack(torch.zeros(choice.count, case.hidden), products)
    half.fields.router = router.fields
    return case.computed(half)
