# SPDX-License-Identifier: Apache-2.0
"""A configuration with several groups: each weight has the form that its tensors are of, by their types too."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import hugging_model
from quantized_directory import EIGHT, FORMS, LARGE, Encode, Numbers, Tensors, compressed, write_quantized

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.loaders.facts.form_choice import FormChoice, ShapeForms
from pontil.runtime.loaders.facts.shards import WHOLE
from pontil.runtime.loaders.facts.weight_forms import Shape, WeightForm
from pontil.runtime.loaders.facts.weight_schemes import weight_scheme
from pontil.runtime.loaders.level_formats import level_formats
from pontil.runtime.probe.packed_share import bytes_of

INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group"}


def several(*groups: dict[str, Any]) -> dict[str, Any]:
    """A configuration of groups, each with its `format`."""
    config_groups = {
        f"group_{number}": {"format": group["format"], "weights": group} for number, group in enumerate(groups)
    }
    return compressed("mixed-precision") | {"config_groups": config_groups}


def in_turn(*names: str) -> Encode:
    """Encode one weight after another in these forms."""
    encoders = [FORMS[name][1] for name in names]
    count = 0

    def encode(weight: Numbers) -> tuple[Tensors, Numbers]:
        nonlocal count
        count += 1
        return encoders[count % len(encoders)](weight)

    return encode


def read(folder: Path, form: dict[str, Any], names: Sequence[str]) -> None:
    """Write weights in these forms, and read the numbers that they stand for."""
    hugging = hugging_model("llama", LARGE)
    write_quantized(hugging, folder, form, in_turn(*names))
    expected = hugging.state_dict()
    for name, tensor in open_checkpoint(folder).tensors(torch.float32):
        assert (tensor - expected[name]).abs().max() <= 1e-6 * expected[name].abs().max()


def test_types_tell_forms_of_equal_shapes_apart(tmp_path: Path) -> None:
    floats, whole = EIGHT | {"strategy": "channel", "format": "float-quantized"}, INT8 | {"format": "int-quantized"}
    read(tmp_path / "floats", several(floats, whole), ("bytes", "float8-channel"))
    read(tmp_path / "whole", several(whole, floats), ("bytes", "float8-channel"))
    config = open_checkpoint(tmp_path / "floats").config
    counted = level_formats(tmp_path / "floats", config)
    # Every other of 7 weights in 2 layers is whole numbers, which a plan sees in the files too.
    assert sorted(one.floats for one in counted.values()) == [False] * 7 + [True] * 7


def test_zeros_tell_forms_apart(tmp_path: Path) -> None:
    """The first of two groups has none, and fits all tensors of weights that have them, but for the zeros."""
    plain, zeros = (INT4 | {"format": "pack-quantized", "symmetric": one} for one in (True, False))
    both = several(plain | {"group_size": 128}, plain | {"group_size": 32}, zeros | {"group_size": 128})
    read(tmp_path, both, ("packed", "packed-zeros"))


def test_a_group_that_does_not_fit_a_weight_is_for_others(tmp_path: Path) -> None:
    groups = (INT4 | {"format": "pack-quantized", "group_size": size} for size in (48, 32))
    read(tmp_path, several(*groups), ("packed",))


def test_tensors_of_several_forms_are_refused(tmp_path: Path) -> None:
    """Blocks of 48 and of 50 outputs divide 128 and 256 into as many."""
    blocks = (
        EIGHT | {"strategy": "block", "format": "float-quantized", "block_structure": [rows, 80]} for rows in (48, 50)
    )
    write_quantized(hugging_model("llama", LARGE), tmp_path, several(*blocks), FORMS["float8-block"][1])
    with pytest.raises(
        ModelError, match=r"tensors of model.layers.0.* fit several groups of quantization_config"
    ) as caught:
        open_checkpoint(tmp_path)
    assert "\n" not in str(caught.value)


def test_forms_are_made_once_for_each_shape() -> None:
    """A file may name a thousand groups, and have thousands of weights."""
    many = {"format": "pack-quantized", "num_bits": 4, "type": "int", "strategy": "group"}
    scheme = weight_scheme(
        {"quantization_config": several(*(many | {"group_size": 16 * one} for one in range(1, 1001)))}
    )
    made: list[Shape] = []

    class Counting:
        method = "compressed-tensors"

        def forms(self, shape: Shape) -> list[WeightForm]:
            made.append(shape)
            assert scheme is not None
            return scheme.forms(shape)

    stored = {"weight_packed": ((64, 16), "I32"), "weight_scale": ((64, 4), "F16")}
    found = {f"{number}.{end}": one for number in range(1000) for end, one in stored.items()}
    choice = FormChoice(Counting(), found)
    assert {choice.form(f"{number}.weight", (64, 128)).group for number in range(1000)} == {32}  # type: ignore[union-attr]
    assert made == [(64, 128)]


def test_groups_that_mean_the_same_are_one() -> None:
    """A block of one output is a group, which no other can be told from."""
    groups = (
        INT8 | {"format": "int-quantized", "strategy": "block", "block_structure": [1, 32]},
        INT8 | {"format": "int-quantized", "strategy": "group", "group_size": 32},
    )
    for turn in (groups, groups[::-1]):
        scheme = weight_scheme({"quantization_config": several(*turn)})
        assert scheme is not None
        form = FormChoice(scheme, {"a.weight": ((64, 128), "I8"), "a.weight_scale": ((64, 4), "F16")})
        assert form.form("a.weight", (64, 128)) in scheme.forms((64, 128))


def test_groups_of_equal_tensors_are_not_compared_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may name thousands whose sizes all divide a weight into as many parts, or leave inputs over."""
    blocks = (
        INT8 | {"format": "int-quantized", "strategy": "block", "block_structure": [rows, 1]} for rows in range(64, 128)
    )
    sizes = (INT8 | {"format": "int-quantized", "strategy": "group", "group_size": size} for size in range(65, 128))
    scheme = weight_scheme({"quantization_config": several(*blocks, *sizes)})
    assert scheme is not None
    forms, compared = scheme.forms((128, 128)), list[WeightForm]()

    def equal(one: WeightForm, other: object) -> bool:
        compared.append(one)
        return one is other

    monkeypatch.setattr(WeightForm, "__eq__", equal)
    found = ShapeForms.of(forms)
    assert len(forms) == 127 and len(compared) <= len(forms)
    assert [len(alike) for alike in found.by_parts.values()] == [3, 1]


def test_files_that_are_not_loaded_are_not_planned(tmp_path: Path) -> None:
    """Some directories have the weights of an earlier state, or in one file and in several."""
    hugging = hugging_model("llama", LARGE)
    write_quantized(hugging, tmp_path / "awq", *FORMS["awq"])
    hugging.save_pretrained(tmp_path / "plain")
    size = bytes_of(tmp_path / "awq")
    shutil.copy(tmp_path / "plain" / WHOLE, tmp_path / "awq" / "consolidated.safetensors")
    (tmp_path / "awq" / "broken.safetensors").write_bytes(b"none")
    config = open_checkpoint(tmp_path / "awq").config
    assert len(level_formats(tmp_path / "awq", config)) == 14 and bytes_of(tmp_path / "awq") == size
