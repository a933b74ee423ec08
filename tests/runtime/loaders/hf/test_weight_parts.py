# SPDX-License-Identifier: Apache-2.0
"""Quantized weights in pieces: sizes that a file may name, and that nothing else has tried."""

import pytest
import torch

from pontil.gpu_ops.kernels.weights.quantized import QuantizedWeights, stacked
from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.scaled_forms import ScaledForm
from pontil.runtime.loaders.facts.weight_forms import awq_form, gptq_form
from pontil.runtime.loaders.gguf.packed_formats import NumberFormat
from pontil.runtime.loaders.gguf.packed_formats import stacked as stacked_format
from pontil.runtime.loaders.hf.weight_parts import WeightParts, read_awq

NAME = "x.weight"


def test_scales_are_repeated_for_no_more_than_there_is() -> None:
    """A file of a few bytes may name a block of any size."""
    form = ScaledForm(None, False, "block", block=(1 << 40, 1 << 70)).form((32, 64), (1, 1))
    assert (form.outputs, form.group, form.groups) == (32, 64, 1)


def test_words_that_are_not_full_have_no_more_outputs_than_the_weight() -> None:
    form = awq_form((250, 64), 32)
    found = {
        "qweight": torch.zeros(64, 32, dtype=torch.int32),
        "qzeros": torch.zeros(2, 32, dtype=torch.int32),
        "scales": torch.ones(2, 250, dtype=torch.float16),
    }
    numbers, scales, zeros = read_awq(form, found)
    assert numbers.shape == (250, 64) and scales.shape == zeros.shape == (250, 2)


def weight(outputs: int, group: int) -> QuantizedWeights:
    numbers = torch.randint(0, 16, (outputs, 192), dtype=torch.uint8)
    return QuantizedWeights(numbers, torch.rand(outputs, 192 // group), torch.rand(outputs, 192 // group))


def test_groups_of_one_product_need_not_divide_each_other() -> None:
    parts = [weight(3, 96), weight(2, 64)]
    joined = stacked(parts)
    assert joined.group == stacked_format([NumberFormat(4, 96), NumberFormat(4, 64)]).group == 32
    assert torch.equal(joined.dense(), torch.cat([part.dense() for part in parts]))


@pytest.mark.parametrize("lost", [1, 64])
def test_an_order_is_that_of_all_inputs_or_of_none(lost: int) -> None:
    parts = WeightParts(NAME, gptq_form((8, 64), 4, 32, 1, False), {})
    listed = torch.arange(63, -1, -1) // 32
    assert torch.equal(parts.order({"g_idx": listed}), listed)
    listed[:lost] = -1
    if lost == 64:
        assert torch.equal(parts.order({"g_idx": listed}), torch.arange(64) // 32)
    else:
        with pytest.raises(ModelError, match=r"\(g_idx\) has groups beyond its 2: fetch the model again"):
            parts.order({"g_idx": listed})
