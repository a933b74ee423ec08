# SPDX-License-Identifier: Apache-2.0
"""Layers behind a model's own, which predict further tokens, are left out by name."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_latent import write_tiny_deepseek
from tiny_llama import write_tiny_llama

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.loaders.facts.shards import WHOLE


def add(folder: Path, name: str) -> None:
    tensors = load_file(folder / WHOLE)
    save_file(tensors | {name: torch.zeros(4)}, folder / WHOLE, metadata={"format": "pt"})


def test_the_layer_behind_the_last_is_not_read(tmp_path: Path) -> None:
    write_tiny_deepseek(tmp_path)
    before = dict(open_checkpoint(tmp_path).places)
    add(tmp_path, "model.layers.2.enorm.weight")
    assert open_checkpoint(tmp_path).places.keys() == before.keys()
    add(tmp_path, "model.layers.1.enorm.weight")
    with pytest.raises(ModelError, match=r"holds 1 that deepseek_v3 does not have: model\.layers\.1\.enorm\.weight"):
        open_checkpoint(tmp_path)


def test_models_without_such_layers_have_none(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    add(tmp_path, "model.layers.2.enorm.weight")
    with pytest.raises(ModelError, match=r"holds 1 that llama does not have"):
        open_checkpoint(tmp_path)
