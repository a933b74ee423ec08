# SPDX-License-Identifier: Apache-2.0
"""Parts of weights of 8 and 4 bits with scales are the same weights."""

import pytest
import torch

from pontil.gpu_ops.products.experts import weights_of
from pontil.gpu_ops.products.scaled_weights import Fp4Weights, JoinedLinear, PackedWeights, ScaledLinear, ScaledWeights


def eights() -> ScaledWeights:
    generator = torch.Generator().manual_seed(1)
    numbers = torch.randn(5, 96, generator=generator).to(torch.float8_e4m3fn)
    return ScaledWeights(numbers, torch.rand(5, 3, generator=generator), 32)


def fours() -> Fp4Weights:
    generator = torch.Generator().manual_seed(2)
    numbers = torch.randint(0, 256, (5, 3, 16), dtype=torch.uint8, generator=generator)
    return Fp4Weights(numbers, torch.randint(120, 130, (5, 3), dtype=torch.uint8, generator=generator))


@pytest.mark.parametrize("weight", [eights(), fours()], ids=["eights", "fours"])
@pytest.mark.parametrize("cut", [range(0, 32), range(32, 96)])
def test_some_inputs_and_some_outputs(weight: PackedWeights, cut: range) -> None:
    whole = weight.dense(torch.float32)
    assert torch.equal(weight.columns(cut).dense(torch.float32), whole[:, cut.start : cut.stop])
    assert torch.equal(weight.rows(range(1, 3)).dense(torch.float32), whole[1:3])


def test_products_beside_each_other_are_one() -> None:
    """In an expert, of which there is one matrix for all, they are the numbers that they stand for."""
    cpu, x = torch.device("cpu"), torch.randn(3, 96, generator=torch.Generator().manual_seed(3))
    stored: list[PackedWeights] = [eights(), fours(), eights()]
    biases = torch.arange(15.0).split(5)
    parts = [ScaledLinear(one, x.dtype, cpu, bias) for one, bias in zip(stored, biases, strict=True)]
    joined = JoinedLinear(parts)
    whole = torch.cat([one.dense(x.dtype) for one in stored])
    assert (joined.out_features, joined.in_features) == whole.shape
    torch.testing.assert_close(joined(x), x @ whole.T + torch.arange(15.0))
    made = weights_of([joined, joined])
    assert (
        made.bias is not None and torch.equal(made.numbers[1], whole) and torch.equal(made.bias[0], torch.arange(15.0))
    )
