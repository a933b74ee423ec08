# SPDX-License-Identifier: Apache-2.0
"""Scales, whole numbers and offsets give the same values as reading the blocks directly."""

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from pontil.runtime.loaders.gguf.file import EMBEDDING, GgufCheckpoint
from pontil.runtime.loaders.gguf.ggml_levels import LEVELS
from pontil.runtime.loaders.gguf.ggml_types import GGML_TYPES
from pontil.runtime.loaders.synthetic import write_tiny_llama

BLOCKS = 60
# Byte offsets of a block's 16-bit floats.
HALVES = {2: (0,), 3: (0, 2), 6: (0,), 7: (0, 2), 8: (0,), 12: (0, 2), 13: (0, 2), 14: (208,)}


@pytest.mark.parametrize("kind", LEVELS)
def test_blocks(kind: int) -> None:
    generator = torch.Generator().manual_seed(kind)
    blocks = torch.randint(0, 256, (BLOCKS, GGML_TYPES[kind].size), dtype=torch.uint8, generator=generator)
    for at in HALVES[kind]:
        blocks[:, at : at + 2] = torch.randn(BLOCKS, 1, generator=generator).half().view(torch.uint8)
    numbers, scales, offsets = LEVELS[kind](blocks)
    assert numbers.dtype == (torch.int8 if kind == 8 else torch.uint8) and int(numbers.max()) < 128
    spread = numbers.shape[1] // scales.shape[1]
    assert spread == (16 if kind == 14 else 32) and scales.shape == offsets.shape
    weights = scales.repeat_interleave(spread, 1) * numbers.float() + offsets.repeat_interleave(spread, 1)
    torch.testing.assert_close(weights, GGML_TYPES[kind].read(blocks), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_a_whole_file(tmp_path: Path, write_gguf: Any, tied: bool) -> None:
    """Rows are ordered as in the tensors, and the embedding comes in the form that is needed."""
    config = write_tiny_llama(tmp_path / "hf", tie_word_embeddings=tied)
    checkpoint = GgufCheckpoint.open(write_gguf(tmp_path / "hf", config, kind=gguf.GGMLQuantizationType.Q8_0))
    tensors, levels = dict(checkpoint.tensors(torch.float32)), dict(checkpoint.levels(torch.float32))
    for name in {name.removesuffix(".numbers") for name in levels if name.endswith(".numbers")}:
        numbers, scales, offsets = (levels.pop(f"{name}.{part}") for part in ("numbers", "scales", "offsets"))
        spread = numbers.shape[1] // scales.shape[1]
        found = scales.repeat_interleave(spread, 1) * numbers + offsets.repeat_interleave(spread, 1)
        assert torch.equal(found, tensors.pop(name))
        assert name != EMBEDDING or tied
    kept = {EMBEDDING} if tied else set()
    assert set(levels) - kept == set(tensors) and all(torch.equal(levels[name], tensors[name]) for name in tensors)
