# SPDX-License-Identifier: Apache-2.0
"""Products by torch's kernels are those of Triton's, but for the rounding of rows and results; a wrong one is told."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from step_packages import STRICT
from torch import Tensor

from pontil.gpu_ops.activation import clamped_swiglu, silu_and_mul
from pontil.gpu_ops.products.experts import GroupedExperts
from pontil.gpu_ops.products.level_weights import LevelWeights
from pontil.gpu_ops.products.scaled_weights import PlainWeights, ScaledLinear, ScaledWeights
from pontil.gpu_ops.products.torch_products import (
    EXPERTS,
    PRODUCTS,
    GroupedMatmul,
    ScaledMatmul,
    TorchProducts,
    largest_difference,
)
from pontil.gpu_ops.triton import experts
from pontil.gpu_ops.triton.device_weights import DeviceWeights

CPU, BRAIN = torch.device("cpu"), torch.bfloat16


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, function in STRICT.items():
        monkeypatch.setattr(torch, name, function)
    monkeypatch.setattr(experts, "expert_results", one_by_one)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def floats(outputs: int, inputs: int, groups: int = 1) -> ScaledWeights:
    scales = 0.01 + drawn(outputs, groups).abs()
    return ScaledWeights((40 * drawn(outputs, inputs)).to(torch.float8_e4m3fn), scales, inputs // groups)


def one_by_one(
    x: Tensor,
    chosen: Tensor,
    gate_up: DeviceWeights,
    down: DeviceWeights,
    first: int,
    clamp: Any = None,
    adapters: None = None,
) -> Tensor:
    """The results of Triton's kernels by torch: not rounded but for the activations."""
    out = torch.full((*chosen.shape, down.outputs), torch.nan)
    for row, numbers in enumerate((chosen - first).tolist()):
        for place, number in enumerate(numbers):
            if 0 <= number < len(gate_up.numbers):
                both = F.linear(x[row : row + 1].float(), gate_up.numbers[number].float())
                inner = silu_and_mul(both) if clamp is None else clamped_swiglu(both, *clamp)
                out[row, place] = F.linear(inner.to(x.dtype).float(), down.numbers[number].float())[0]
    return out


def mixture(count: int, hidden: int, inner: int, first: int = 0, clamp: Any = None) -> GroupedMatmul:
    gate_up, down = drawn(count, 2 * inner, hidden) / 8, drawn(count, hidden, inner) / 8
    return GroupedMatmul(DeviceWeights(gate_up.to(BRAIN)), DeviceWeights(down.to(BRAIN)), first, clamp)


@pytest.mark.parametrize(("outputs", "inputs", "biased"), [(48, 64, False), (16, 256, True), (1024, 32, False)])
def test_a_product_of_rounded_rows_is_that_of_the_weights(outputs: int, inputs: int, biased: bool) -> None:
    made = ScaledMatmul(floats(outputs, inputs), BRAIN, CPU, drawn(outputs).to(BRAIN) if biased else None)
    assert made.difference() < 1e-2
    for shape in ((1, inputs), (5, inputs), (2, 3, inputs)):
        x = drawn(*shape).to(BRAIN)
        whole = ScaledLinear(made.weights, BRAIN, CPU, made.bias)(x)
        # Rows have three bits behind the first.
        assert made(x).shape == whole.shape and largest_difference(made(x), whole) < 0.05
    assert not made(torch.zeros(1, inputs, dtype=BRAIN)).isnan().any()


def test_a_row_does_not_change_with_those_beside_it() -> None:
    made, x = ScaledMatmul(floats(32, 64), BRAIN, CPU, None), drawn(4, 64).to(BRAIN)
    other = torch.cat((x[:1], 1000 * x[1:]))
    assert torch.equal(made(x)[0], made(other)[0])


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("clamp", [None, (1.702, 7.0)])
def test_grouped_experts_are_those_one_by_one(first: int, clamp: Any) -> None:
    """Rows whose experts are elsewhere have nothing of theirs, and an expert that no row chose is passed over."""
    made = mixture(4, 64, 24, first, clamp)
    x, chosen = drawn(9, 64).to(BRAIN), first + torch.tensor([[0, 1], [3, 0], [-1, 0], [4, 3], [-2, 5]] + [[1, 0]] * 4)
    results, wanted = made(x, chosen), one_by_one(x, chosen, made.gate_up, made.down, first, clamp)
    own = ~wanted.isnan()
    assert results.dtype == torch.float32 and results.shape == (9, 2, 64) and int(own.sum()) == 14 * 64
    torch.testing.assert_close(results[own], wanted[own], rtol=0, atol=2e-2 * float(wanted[own].abs().max()))
    assert made.difference() < 2e-2
    # Numbers of 32 bits will do as well.
    assert torch.equal(made(x, chosen.int())[own], results[own])


def test_wrong_kernels_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    def unscaled(*given: Any, **named: Any) -> Tensor:
        return STRICT["_scaled_mm"](*given, **{**named, "scale_b": torch.ones_like(named["scale_b"])})

    def shifted(rows: Tensor, weights: Tensor, *, offs: Tensor) -> Tensor:
        """A kernel that takes one row less for the first expert."""
        return STRICT["_grouped_mm"](rows, weights, offs=torch.cat((offs[:1] - 1, offs[1:])))

    monkeypatch.setattr(torch, "_scaled_mm", unscaled)
    monkeypatch.setattr(torch, "_grouped_mm", shifted)
    assert ScaledMatmul(floats(32, 64), BRAIN, CPU, None).difference() > 0.1
    assert mixture(4, 64, 24).difference() > 0.1


def test_what_torch_does_not_multiply_is_left_to_triton() -> None:
    products = TorchProducts((PRODUCTS, EXPERTS))
    usual = GroupedExperts(mixture(2, 64, 24).gate_up, mixture(2, 64, 24).down, 0, None)
    assert isinstance(products.experts(usual), GroupedMatmul) and TorchProducts().experts(usual) is usual
    for gate_up in (
        DeviceWeights(usual.gate_up.numbers.float()),
        DeviceWeights(usual.gate_up.numbers, bias=torch.zeros(2, 48)),
        DeviceWeights(torch.zeros(2, 48, 60, dtype=BRAIN)),
        DeviceWeights(
            torch.zeros(2, 48, 64, dtype=torch.int8), scales=torch.zeros(2, 48, 3, dtype=torch.int32), group=64
        ),
    ):
        other = GroupedExperts(gate_up, usual.down, 0, None)
        assert products.experts(other) is other
    assert isinstance(products.linear(floats(32, 64), BRAIN, CPU, None), ScaledMatmul)
    levels = LevelWeights(torch.zeros(32, 64, dtype=torch.int8), torch.zeros(32, 3, dtype=torch.int32), 64)
    others = (floats(32, 64, groups=2), floats(24, 64), floats(32, 24), PlainWeights(torch.zeros(32, 64)), levels)
    assert all(products.linear(one, BRAIN, CPU, None) is None for one in others)
    assert products.linear(floats(32, 64), torch.float16, CPU, None) is None
    assert products.linear(floats(32, 64), BRAIN, CPU, torch.zeros(32)) is None
    assert TorchProducts().linear(floats(32, 64), BRAIN, CPU, None) is None
    assert {name: len(made) for name, made in products.made.items()} == {PRODUCTS: 1, EXPERTS: 1}
