# SPDX-License-Identifier: Apache-2.0
"""A model in several files is the model in one."""

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.builtin import local_model, resolve_model
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.loaders.config import read_config
from pontil.runtime.loaders.gguf.file import GgufCheckpoint
from pontil.runtime.loaders.gguf.packed_formats import gguf_formats


@pytest.fixture
def parts(tiny: Path, write_gguf: Any) -> list[Path]:
    """A tiny model in three files, beside `tiny.gguf`, which is the same in one."""
    config = read_config(tiny)
    write_gguf(tiny, config, kind=gguf.GGMLQuantizationType.Q4_0, split_max_tensors=8)
    path = write_gguf(tiny, config, kind=gguf.GGMLQuantizationType.Q4_0)
    return sorted(path.parent.glob("tiny-*.gguf"))


@pytest.mark.parametrize("given", range(3))
def test_any_part_stands_for_the_model(parts: list[Path], given: int) -> None:
    whole, divided = (GgufCheckpoint.open(path) for path in (parts[0].with_name("tiny.gguf"), parts[given]))
    assert len(parts) == 3 and list(divided.files) == parts and divided.config == whole.config
    for ours, theirs in ((divided.tensors(), whole.tensors()), (divided.levels(), whole.levels())):
        for (name, found), (other, expected) in zip(ours, theirs, strict=True):
            assert name == other and torch.equal(found, expected)
    assert divided.fingerprint != whole.fingerprint
    assert gguf_formats(parts[given], divided.config) == gguf_formats(whole.files[0], whole.config)
    # The tokenizer is in the first.
    assert resolve_model(str(parts[given]), Path()) == local_model(str(parts[given]), Path()) == parts[0]


def test_a_missing_part_is_named(parts: list[Path]) -> None:
    parts[1].unlink()
    with pytest.raises(ModelError, match="is one of 3 files of a model: tiny-00002-of-00003.gguf must lie beside it"):
        read_config(parts[0])


def test_a_part_of_another_model_is_named(parts: list[Path]) -> None:
    parts[1].write_bytes(parts[2].read_bytes())
    with pytest.raises(ModelError, match="tiny-00002-of-00003.gguf does not say that it is part 2 of 3: fetch it"):
        open_checkpoint(parts[0])


def test_a_part_that_is_cut_off_is_named(parts: list[Path]) -> None:
    parts[2].write_bytes(parts[2].read_bytes()[:-64])
    with pytest.raises(ModelError, match="tiny-00003-of-00003.gguf is cut off before the end of"):
        open_checkpoint(parts[0])


def test_parts_with_other_names_are_refused(parts: list[Path]) -> None:
    other = parts[0].rename(parts[0].with_name("first.gguf"))
    with pytest.raises(ModelError, match="first.gguf is one of 3 files of a model: name them NAME-00001-of-00003.gguf"):
        open_checkpoint(other)


def test_parts_of_two_models_are_not_mixed(tiny: Path, write_gguf: Any, parts: list[Path]) -> None:
    first = parts[0].read_bytes()
    write_gguf(tiny, read_config(tiny), split_max_tensors=8, drop="output_norm.weight")
    parts[0].write_bytes(first)
    with pytest.raises(ModelError, match="hold 20 tensors where 21 belong to the model: fetch them again"):
        open_checkpoint(parts[0])
