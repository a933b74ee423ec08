# SPDX-License-Identifier: Apache-2.0
"""Scales, whole numbers and offsets give the same values as reading the blocks directly."""

from pathlib import Path
from typing import Any

import gguf
import kernels
import numpy as np
import pytest
import torch
from tiny_llama import write_tiny_llama

from pontil.gpu_ops.kernels.weights.matrix import pack
from pontil.gpu_ops.kernels.weights.quantized import QuantizedWeights
from pontil.runtime.loaders.facts.weight_forms import EMBEDDING
from pontil.runtime.loaders.gguf.file import GgufCheckpoint
from pontil.runtime.loaders.gguf.ggml_levels import LEVELS, places_in
from pontil.runtime.loaders.gguf.ggml_types import GGML_TYPES
from pontil.runtime.loaders.gguf.packed_formats import TABLES

BLOCKS = 60
# Byte offsets of a block's 16-bit floats.
HALVES = {2: (0,), 3: (0, 2), 6: (0,), 7: (0, 2), 8: (0,), 10: (80, 82), 11: (108,), 12: (0, 2), 13: (0, 2), 14: (208,),
          20: (0,), 23: (0,), 39: (), 16: (0,), 17: (0,), 18: (0,), 19: (0,), 21: (0,), 22: (0,), 29: (), 34: (52,),
          35: (64,)}  # fmt: skip
SIGNED, MXFP4, IQ1_M = (8, 16, 17, 18, 19, 20, 21, 22, 23, 29, 39), 39, 29
GROUPS = dict.fromkeys((10, 11, 14, 17, 22, 29), 16) | dict.fromkeys((34, 35), 256)


def random_blocks(kind: int, count: int = BLOCKS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(kind)
    blocks = torch.randint(0, 256, (count, GGML_TYPES[kind].size), dtype=torch.uint8, generator=generator)
    for at in HALVES[kind]:
        blocks[:, at : at + 2] = torch.randn(count, 1, generator=generator).half().view(torch.uint8)
    if kind == MXFP4:
        blocks[:, 0] = torch.randint(120, 130, (count,), generator=generator)
    if kind == IQ1_M:
        # The exponent of its float is in the upper half of the last byte.
        blocks[:, 55] = blocks[:, 55] & 15 | 0x20
    return blocks


@pytest.mark.parametrize("kind", LEVELS)
def test_blocks(kind: int) -> None:
    blocks = random_blocks(kind)
    numbers, scales, offsets = LEVELS[kind](blocks)
    assert numbers.dtype == (torch.int8 if kind in SIGNED else torch.uint8) and int(numbers.max()) < 128
    spread = numbers.shape[1] // scales.shape[1]
    assert spread == GROUPS.get(kind, 32) and scales.shape == offsets.shape
    weights = scales.repeat_interleave(spread, 1) * numbers.float() + offsets.repeat_interleave(spread, 1)
    torch.testing.assert_close(weights, GGML_TYPES[kind].read(blocks), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("kind", LEVELS)
def test_products_are_those_of_the_numbers_that_a_type_stands_for(kind: int) -> None:
    outputs, inputs = 37, 768
    blocks = random_blocks(kind, outputs * inputs // GGML_TYPES[kind].numbers)
    weight = GGML_TYPES[kind].read(blocks).view(outputs, inputs).double()
    packed = pack(QuantizedWeights(*(part.reshape(outputs, -1) for part in LEVELS[kind](blocks))))
    x = torch.randn(9, inputs, generator=torch.Generator().manual_seed(1)).bfloat16()
    found, expected = kernels.opened().linear(packed, x.float()), x.double() @ weight.T
    assert bool(((found - expected).abs() <= 1e-3 * (x.double().abs() @ weight.abs().T)).all())


@pytest.mark.parametrize("kind", TABLES)
def test_numbers_of_a_type_are_all_in_its_table_and_make_the_same_bits(kind: int) -> None:
    """In 4 bits instead of 8: what a product makes of places in a table is what it makes of the numbers there."""
    blocks = random_blocks(kind, 37 * 768 // GGML_TYPES[kind].numbers)
    numbers, scales, offsets = (part.reshape(37, -1) for part in LEVELS[kind](blocks))
    table = torch.tensor(TABLES[kind], dtype=torch.int8)
    places = places_in(table, numbers)
    assert len(table) <= 16 and torch.equal(table[places.int()], numbers)
    plain, by_table = (
        QuantizedWeights(numbers, scales, offsets),
        QuantizedWeights(places, scales, offsets, None, table),
    )
    assert torch.equal(plain.dense(), by_table.dense())
    few, many = pack(by_table), pack(plain)
    assert 2 * few.data.nbytes == many.data.nbytes
    x = torch.randn(40, 768, generator=torch.Generator().manual_seed(1))
    for rows in (1, 9, 40):
        products = [kernels.opened().linear(one, x[:rows]) for one in (few, many)]
        assert torch.equal(*products)


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


@pytest.mark.parametrize("kind", GGML_TYPES)
def test_a_file_of_any_type_is_read_whole(tmp_path: Path, write_gguf: Any, kind: int) -> None:
    """With numbers for the kernels, where it has less than 16 bits."""
    config = write_tiny_llama(tmp_path / "hf", hidden_size=256, intermediate_size=256, num_heads=16)
    number, form = gguf.GGMLQuantizationType(kind), GGML_TYPES[kind]
    path = write_gguf(tmp_path / "hf", config, kind=number, random_blocks=True)
    checkpoint = GgufCheckpoint.open(path)
    tensors, levels = dict(checkpoint.tensors(torch.float32)), dict(checkpoint.levels(torch.float32))
    name = "model.layers.1.mlp.down_proj.weight"
    assert (name in levels) == (kind not in LEVELS) and tensors[name].shape == (256, 256)
    place, whole = checkpoint.places[name], torch.from_numpy(np.fromfile(path, dtype=np.uint8))
    blocks = whole[place.offset :][: 256 * 256 // form.numbers * form.size].view(-1, form.size)
    theirs = gguf.quants.dequantize(blocks.numpy(), number)
    assert np.array_equal(tensors[name].numpy(), theirs.reshape(256, 256), equal_nan=True)
    assert checkpoint.has_levels == (kind in LEVELS)
    assert checkpoint.unpacked_types == [] and (kind in LEVELS or form.numbers == 1)
