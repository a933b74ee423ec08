# SPDX-License-Identifier: Apache-2.0
"""The layer of a GGUF file that predicts a further token is the draft layer of the directory that it was made from."""

from pathlib import Path

import gguf
import pytest
import torch
from architectures import SIZES, hugging_model
from converter import convert
from guessing_layers import made, write_directory, write_file

from pontil.runtime.errors import DraftModelError
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.loaders.draft_layers import find_draft_layer, open_draft_layer
from pontil.runtime.probe.weight_memory import layer_memory


@pytest.mark.parametrize("name", ["glm4_moe", "deepseek_v3"])
def test_a_files_layer_has_the_directorys_tensors(tmp_path: Path, name: str) -> None:
    model, more = made(name)
    file, folder = write_file(tmp_path / "x.gguf", model, more), write_directory(tmp_path / "x", model, more)
    sources = [find_draft_layer(path, "mtp") for path in (file, folder)]
    own, other = (dict(open_draft_layer(source).tensors(torch.float32)) for source in sources if source is not None)
    assert own.keys() == other.keys() and len(own) > 20
    for one, tensor in own.items():
        assert torch.equal(tensor, other[one].float()), one
    # The model itself is that of the other layers.
    assert open_checkpoint(file).config.num_layers == 2
    assert open_checkpoint(file).places.keys() == open_checkpoint(folder).places.keys()


def test_numbers_of_4_bits_stay_some(tmp_path: Path) -> None:
    """MXFP4: rows of 32 inputs are whole blocks."""
    file = write_file(tmp_path / "x.gguf", *made("glm4_moe"), kind=gguf.GGMLQuantizationType.MXFP4)
    source = find_draft_layer(file, "mtp")
    assert source is not None
    opened = open_draft_layer(source)
    levels = dict(opened.levels(torch.float32, stored_rows=True))
    assert opened.has_levels and "eh_proj.weight.numbers" in levels
    assert "model.layers.0.mlp.experts.1.down_proj.weight.numbers" in levels and "enorm.weight" in levels
    assert layer_memory(source, "gguf", 2) < 0.5 * layer_memory(source, "none", 2)
    assert opened.fingerprint != open_checkpoint(file).fingerprint


def test_a_file_without_the_layer_or_with_a_part_of_it_is_refused(tmp_path: Path) -> None:
    model, more = made("glm4_moe")
    whole = hugging_model("glm4_moe", SIZES)
    with pytest.raises(DraftModelError, match=r"needs a checkpoint with an MTP layer, and plain\.gguf has none"):
        find_draft_layer(convert(whole, tmp_path / "plain.gguf"), "mtp")
    del more["nextn.hnorm"]
    source = find_draft_layer(write_file(tmp_path / "cut.gguf", model, more), "mtp")
    assert source is not None
    with pytest.raises(DraftModelError, match=r"the MTP layer in .* lacks hnorm\.weight"):
        open_draft_layer(source)
