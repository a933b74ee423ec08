# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from architectures import read_model
from random_gguf import SHAPES, write_random_gguf
from tiny import drain, rig, sequence

from pontil.runtime.loaders.config import read_config
from pontil.runtime.loaders.gguf.header import read_header
from pontil.runtime.tokenizer.tokenizer import load_tokenizer

SMALL: dict[str, Any] = {"layers": 2, "hidden": 256, "inner": 256, "heads": 2, "kv_heads": 1, "vocabulary": 320}


@pytest.mark.parametrize("name", SHAPES)
def test_a_small_file_answers_with_different_tokens(tmp_path: Path, name: str) -> None:
    """Weights far too large would always draw the likeliest token."""
    sizes = SMALL | ({"experts": 4, "experts_used": 2} if SHAPES[name].experts else {})
    path = write_random_gguf(tmp_path / "small.gguf", replace(SHAPES[name], **sizes))
    ours = rig(read_model(path))
    ours.engine.add(sequence("a", [5, 6, 7], max_tokens=12, temperature=1.0))
    assert len(set(drain(ours.engine)["a"])) > 6
    assert load_tokenizer(path).encode("ab c", add_special_tokens=False)


@pytest.mark.parametrize(("name", "size", "layers"), [("8b", 4.9e9, 32), ("30b-a3b", 18.6e9, 48)])
def test_sizes_are_those_of_the_model_in_q4_k_m(tmp_path: Path, name: str, size: float, layers: int) -> None:
    path = write_random_gguf(tmp_path / "large.gguf", SHAPES[name], has_data=False)
    assert path.stat().st_size == pytest.approx(size, rel=0.02)
    assert read_config(path).num_layers == layers
    assert f"blk.{layers - 1}.ffn_norm.weight" in read_header(path).tensors
