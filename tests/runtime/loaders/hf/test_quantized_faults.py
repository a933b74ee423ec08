# SPDX-License-Identifier: Apache-2.0
"""Quantized directories that cannot be read are refused in one sentence that names the field or the tensor."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import hugging_model
from quantized_directory import (
    AWQ,
    EIGHT,
    FLOATS,
    FORMS,
    FP8,
    GPTQ,
    LARGE,
    PACKED,
    Tensors,
    compressed,
    write_quantized,
)
from safetensors.torch import load_file, save_file

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.loaders.config import read_config
from pontil.runtime.loaders.facts.safetensors_header import header_tensors
from pontil.runtime.loaders.facts.shards import WHOLE
from pontil.runtime.loaders.hf.tensor_files import stored_tensors
from pontil.runtime.loaders.level_formats import level_formats, may_have_levels

UP = "model.layers.1.mlp.up_proj."
INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
Change = Callable[[Tensors], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in ("awq", "gptq", "gptq-order", "packed", "fp8")}
    for name, folder in folders.items():
        write_quantized(hugging_model("llama", LARGE), folder, *FORMS[name])
    return folders


def configured(folder: Path, form: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": form}))
    return folder


def cut(end: str, *kept: slice) -> Change:
    """Keep a part of a tensor."""
    return lambda tensors: tensors.update({UP + end: tensors[UP + end][kept].contiguous()})


def put(end: str, tensor: torch.Tensor) -> Change:
    return lambda tensors: tensors.update({UP + end: tensor})


def as_type(end: str, kind: torch.dtype) -> Change:
    return lambda tensors: tensors.update({UP + end: tensors[UP + end].to(kind)})


FAULTS: dict[str, tuple[str, Change, str]] = {
    "no scales": ("awq", lambda tensors: tensors.pop(UP + "scales"), f"lacks the tensor {UP}scales"),
    "no zeros": ("gptq", lambda tensors: tensors.pop(UP + "qzeros"), f"lacks the tensor {UP}qzeros"),
    "no order": ("gptq", lambda tensors: tensors.pop(UP + "g_idx"), f"lacks the tensor {UP}g_idx"),
    "scales alone": ("awq", lambda tensors: tensors.pop(UP + "qweight"), "lacks the tensor .*up_proj.weight"),
    "no scale of floats": ("fp8", lambda tensors: tensors.pop(UP + "weight_scale"), "up_proj.weight as F8_E4M3"),
    "fewer words": ("awq", cut("qweight", slice(64)), r"up_proj.qweight \[64, 32\], not \[128, 32\]"),
    "fewer outputs": ("packed", cut("weight_packed", slice(8)), r"up_proj.weight_packed \[8, 16\], not \[256, 16\]"),
    "fewer groups": ("gptq", cut("scales", slice(1)), r"up_proj.scales \[1, 256\], not \[4, 256\]"),
    "another dimension": ("packed", put("weight_scale", torch.ones(4, dtype=torch.float16)), r"weight_scale \[4\]"),
    "a bias": ("gptq", put("bias", torch.ones(256)), "up_proj.bias is not zero, and this architecture has no such"),
    "a bias besides": ("awq", put("bias", torch.zeros(256)), "holds 1 that llama does not have"),
    "a tensor besides": ("awq", put("perm", torch.ones(4)), "holds 1 that llama does not have"),
    "floats for words": ("awq", as_type("qweight", torch.float32), "qweight as F32: this version reads I32 there"),
    "words for scales": ("gptq", as_type("scales", torch.int32), "scales as I32: this version reads F32, F16, BF16"),
    "bytes for floats": ("fp8", as_type("weight", torch.uint8), "up_proj.weight as U8: this version reads F8_E4M3"),
    "groups beyond": ("gptq-order", put("g_idx", torch.full((128,), 99, dtype=torch.int32)), "groups beyond its 4"),
    "groups below": ("gptq-order", put("g_idx", torch.full((128,), -7, dtype=torch.int32)), "groups beyond its 4"),
    "an order denied": (
        "gptq", lambda tensors: tensors.update({UP + "g_idx": tensors[UP + "g_idx"].flip(0)}),
        "desc_act in config.json denies",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_tensors_that_contradict_the_form(whole: dict[str, Path], tmp_path: Path, fault: str) -> None:
    name, change, says = FAULTS[fault]
    shutil.copytree(whole[name], tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / WHOLE)
    change(tensors)
    save_file(tensors, tmp_path / WHOLE, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=says) as caught:
        dict(open_checkpoint(tmp_path).tensors())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (AWQ, "positive number, or -1, as quantization_config.group_size, not None"),
        (AWQ | {"group_size": 0}, "quantization_config.group_size, not 0"),
        (AWQ | {"group_size": True}, "quantization_config.group_size, not True"),
        (AWQ | {"group_size": 32, "bits": 8}, "quantization_config.bits = 8: this version reads 4 with 'awq' there"),
        (AWQ | {"group_size": 32, "version": "gemv"}, "quantization_config.version = 'gemv': this version reads gemm"),
        (AWQ | {"group_size": 32, "zero_point": False}, "quantization_config.zero_point = False"),
        (GPTQ | {"group_size": 32}, "quantization_config.bits = None: this version reads 2 or 3 or 4 or 8"),
        (GPTQ | {"bits": 5, "group_size": 32}, "quantization_config.bits = 5"),
        (GPTQ | {"bits": True, "group_size": 32}, "quantization_config.bits = True"),
        (GPTQ | {"bits": 4, "group_size": 32, "desc_act": "yes"}, "quantization_config.desc_act = 'yes'"),
        (GPTQ | {"bits": 4, "group_size": 32, "checkpoint_format": "marlin"}, "checkpoint_format = 'marlin'"),
        (GPTQ | {"bits": 4, "group_size": 32, "dynamic": {"+:.*up": {"bits": 8}}}, "quantization_config.dynamic"),
        (FP8 | {"fmt": "e5m2"}, "quantization_config.fmt = 'e5m2'"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quantization_config.quant_method = 'bitsandbytes'"),
        ({"quant_method": ["awq"]}, "quantization_config.quant_method ="),
        ({"bits": 4}, "quantization_config.quant_method = None"),
        (["awq"], "needs an object as quantization_config"),
        (compressed("nvfp4-pack-quantized", **INT4), "quantization_config.format = 'nvfp4-pack-quantized'"),
        (compressed(PACKED, **INT4 | {"num_bits": 16}), "group_0'.weights.num_bits = 16"),
        (compressed(PACKED, **INT4 | {"type": "float"}), "weights.type = 'float': this version reads int there"),
        (compressed(PACKED, **INT4 | {"strategy": "tensor", "group_size": None}), "weights.strategy = 'tensor'"),
        (compressed(PACKED, **INT4 | {"group_size": -4}), "weights.group_size, not -4"),
        (compressed(FLOATS, **EIGHT, strategy="block", block_structure="0x8"), "weights.block_structure, not '0x8'"),
        (compressed(FLOATS, **EIGHT, strategy="block"), "weights.block_structure, not None"),
        (compressed(PACKED, **INT4) | {"config_groups": {}}, "as quantization_config.config_groups, not 0"),
        (compressed(PACKED, **INT4) | {"config_groups": {"W4A16": ["Linear"]}}, "object as .*config_groups.'W4A16'"),
        (compressed(PACKED, **INT4) | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config.format"),
        (compressed(PACKED, **INT4) | {"transform_config": {"config_groups": {"u": {}}}}, "transform_config"),
    ],
)  # fmt: skip
def test_configurations_that_are_not_known(whole: dict[str, Path], tmp_path: Path, form: Any, says: str) -> None:
    shutil.copytree(whole["awq"], tmp_path, dirs_exist_ok=True)
    with pytest.raises(ModelError, match=says) as caught:
        read_config(configured(tmp_path, form))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("awq", AWQ | {"group_size": 48}),
        ("gptq", GPTQ | {"bits": 4, "group_size": 1 << 40}),
        ("packed", compressed(PACKED, **INT4 | {"group_size": 48})),
    ],
)
def test_groups_that_do_not_divide_the_inputs(
    whole: dict[str, Path], tmp_path: Path, name: str, form: dict[str, Any]
) -> None:
    shutil.copytree(whole[name], tmp_path, dirs_exist_ok=True)
    config = read_config(configured(tmp_path, form))
    for reads in (open_checkpoint, lambda path: level_formats(path, config)):
        with pytest.raises(ModelError, match=r"\(group_size\), which do not divide the 128 inputs of model.layers.0"):
            reads(tmp_path)


def test_a_bias_of_zeros_is_none(whole: dict[str, Path], tmp_path: Path) -> None:
    """AutoGPTQ writes one for every product."""
    shutil.copytree(whole["gptq"], tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / WHOLE)
    places = {name.replace("qweight", "bias"): len(one[0]) for name, one in tensors.items() if "qweight" in name}
    tensors = {name: torch.zeros(outputs) for name, outputs in places.items()} | tensors
    assert len(places) > len(places.keys() & load_file(whole["gptq"] / WHOLE)) > 0
    save_file(tensors, tmp_path / WHOLE, metadata={"format": "pt"})
    with_zeros, without = (dict(open_checkpoint(folder).tensors()) for folder in (tmp_path, whole["gptq"]))
    assert with_zeros.keys() == without.keys() and all(torch.equal(with_zeros[name], without[name]) for name in without)


def test_a_pattern_of_a_file_is_not_run(whole: dict[str, Path], tmp_path: Path) -> None:
    """These would take years."""
    shutil.copytree(whole["packed"], tmp_path, dirs_exist_ok=True)
    group = {"targets": ["re:" + "(.*)*" * 12 + "x"], "weights": INT4}
    form = compressed(PACKED, **INT4) | {"config_groups": {"group_0": group}, "ignore": ["re:((a|.)+)+$"]}
    assert open_checkpoint(configured(tmp_path, form)).has_levels


@pytest.mark.parametrize("size", [0, 2, 10, 1 << 40, (1 << 64) - 1])
def test_a_header_that_is_none(whole: dict[str, Path], tmp_path: Path, size: int) -> None:
    shutil.copytree(whole["awq"], tmp_path, dirs_exist_ok=True)
    config = read_config(tmp_path)
    (tmp_path / WHOLE).write_bytes(size.to_bytes(8, "little") + b"[]")
    with pytest.raises(ModelError, match="is damaged or cut off: fetch it again"):
        may_have_levels(tmp_path, config)


@pytest.mark.parametrize(
    "tensor",
    [
        {"dtype": "I32", "shape": [[128, 8]]},
        {"dtype": "I32", "shape": [True, 8]},
        {"dtype": "I32", "shape": ["128", 8]},
        {"dtype": "I32", "shape": [128.0, 8]},
        {"dtype": "I32", "shape": "12"},
        {"dtype": "I32", "shape": {"128": 8}},
        {"dtype": ["I32"], "shape": [128, 8]},
        {"dtype": 1, "shape": [128, 8]},
        {"dtype": "I32"},
        [],
    ],
)
def test_a_header_whose_tensor_is_none(whole: dict[str, Path], tmp_path: Path, tensor: object) -> None:
    shutil.copytree(whole["awq"], tmp_path, dirs_exist_ok=True)
    config = read_config(tmp_path)
    header = json.dumps({"model.layers.0.mlp.up_proj.qweight": tensor}).encode()
    (tmp_path / WHOLE).write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ModelError, match="is damaged or cut off: fetch it again"):
        may_have_levels(tmp_path, config)


def test_a_header_is_read_as_safetensors_reads_it(whole: dict[str, Path]) -> None:
    for folder in whole.values():
        assert header_tensors(folder / WHOLE) == stored_tensors(folder / WHOLE)
