# SPDX-License-Identifier: Apache-2.0
"""Weights that the formats' own packages packed, and what these unpack them to.

`packages_weights.safetensors` was made from random numbers by autoawq 0.2.9 (`dequantize_gemm` of
awq/utils/packing_utils.py), compressed-tensors 0.20.0 (`compress` and `decompress` of its compressors) and auto-gptq
0.7.1 (`pack` and `forward` of nn_modules/qlinear/qlinear_cuda.py): `NAME/expected` is the weight that they compute
with, and the metadata has the quantization_config of each NAME.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from pontil.runtime.loaders.facts.weight_schemes import stored_forms, weight_scheme
from pontil.runtime.loaders.hf.tensor_files import TensorLocation, opened, stored_tensors
from pontil.runtime.loaders.hf.weight_parts import WeightParts

FILE = Path(__file__).with_name("packages_weights.safetensors")
NAMES = (
    "awq", "gptq-2", "gptq-3", "gptq-4", "gptq-8", "gptq-4-order", "packed-4", "packed-4-zeros", "packed-3-zeros",
    "packed-8", "bytes", "float8-channel", "float8-tensor", "float8-block",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_those_of_the_formats_own_packages(name: str) -> None:
    with safe_open(FILE, framework="pt") as file:
        scheme = weight_scheme({"quantization_config": json.loads(file.metadata()["forms"])[name]})
    kinds = {one.removeprefix(f"{name}/"): kind for one, (_, kind) in stored_tensors(FILE).items()}
    tensors = {
        one.removeprefix(f"{name}/"): found for one, found in load_file(FILE).items() if one.startswith(f"{name}/")
    }
    expected = tensors.pop("expected")
    stored = {f"m.{end}": (tuple(tensor.shape), kinds[end]) for end, tensor in tensors.items()}
    (form,) = stored_forms(scheme, {"m.weight": tuple(expected.shape)}, stored).values()
    assert set(form.parts) == set(tensors) - {"weight_shape"}
    parts = {end: TensorLocation(FILE, f"{name}/{end}", part.kinds[0]) for end, part in form.parts.items()}
    with opened(FILE) as file:
        found = WeightParts("m.weight", form, parts).read(file)
    assert torch.equal(found.dense(torch.float32), expected)


def test_every_weight_of_the_file_is_compared() -> None:
    assert {name.partition("/")[0] for name in load_file(FILE)} == set(NAMES)
