# SPDX-License-Identifier: Apache-2.0
"""Quantized weights in pieces: sizes that a file may name, and that nothing else has tried."""

import math
from pathlib import Path

import pytest
import torch
from live_tensors import LiveTensors
from safetensors.torch import save_file

from pontil.gpu_ops.kernels.weights.quantized import QuantizedWeights, stacked
from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.scaled_forms import ScaledForm
from pontil.runtime.loaders.facts.weight_forms import WeightForm, awq_form, gptq_form
from pontil.runtime.loaders.gguf.packed_formats import NumberFormat
from pontil.runtime.loaders.gguf.packed_formats import stacked as stacked_format
from pontil.runtime.loaders.hf.tensor_files import TensorLocation, opened
from pontil.runtime.loaders.hf.weight_parts import OUTPUTS, WeightParts, read_awq
from pontil.runtime.probe.weight_memory import LEVEL_BYTES, LEVEL_SCALES, READING_BYTES

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


LARGE = (16 * OUTPUTS, 256)
KINDS = {"I32": torch.int32, "F32": torch.float32, "I8": torch.int8, "F8_E4M3": torch.float8_e4m3fn}
SIZED = {
    "awq": awq_form(LARGE, 64),
    "gptq-3": gptq_form(LARGE, 3, 64, 1, True),
    "gptq-4": gptq_form(LARGE, 4, 64, 1, True),
    "gptq-8": gptq_form(LARGE, 8, 64, 1, True),
    "packed-8": ScaledForm(8, True, "group", 64, zeros=True).forms(LARGE)[0],
    "bytes": ScaledForm(8, False, "channel").forms(LARGE)[0],
    "fp8": ScaledForm(None, False, "channel").forms(LARGE)[0],
}


@pytest.mark.parametrize("name", SIZED)
def test_reading_takes_as_much_memory_as_a_plan_says(tmp_path: Path, name: str) -> None:
    form, count = SIZED[name], math.prod(LARGE)
    tensors = {end: torch.zeros(part.shape, dtype=KINDS[part.kinds[0]]) for end, part in form.parts.items()}
    save_file(tensors | in_order(form), tmp_path / "x.safetensors")
    places = {end: TensorLocation(tmp_path / "x.safetensors", end, part.kinds[0]) for end, part in form.parts.items()}
    weight, few = WeightParts(NAME, form, places), OUTPUTS * LARGE[1] * 16
    reading = READING_BYTES * count + few
    with opened(tmp_path / "x.safetensors") as file, LiveTensors() as live:
        weight.read(file).dense(torch.bfloat16)
    assert live.peak <= 2 * count + reading
    if form.has_levels:
        with opened(tmp_path / "x.safetensors") as file, LiveTensors() as live:
            weight.read(file).levels()
        assert live.peak <= LEVEL_BYTES * count + LEVEL_SCALES * count // form.group + reading


def in_order(form: WeightForm) -> dict[str, torch.Tensor]:
    return {end: torch.arange(LARGE[1], dtype=torch.int32) // form.group for end in form.parts if end == "g_idx"}
