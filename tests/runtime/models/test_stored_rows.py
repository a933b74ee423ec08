# SPDX-License-Identifier: Apache-2.0
"""Rows that stay in their file's blocks have, when they are looked up, the bits of a table that was read whole."""

from pathlib import Path

import gguf
import kernels
import pytest
import torch
from tiny_gguf import write_tiny_gguf
from tiny_llama import write_tiny_llama

from pontil.runtime.loaders.facts.weight_forms import EMBEDDING
from pontil.runtime.loaders.gguf.block_sizes import BLOCKS, CODEBOOKS, stored_embedding
from pontil.runtime.loaders.gguf.file import GgufCheckpoint
from pontil.runtime.loaders.gguf.ggml_codebooks import SCALES
from pontil.runtime.loaders.gguf.ggml_levels import LEVELS
from pontil.runtime.loaders.gguf.ggml_types import GGML_TYPES
from pontil.runtime.loaders.gguf.packed_formats import GGUF_FORMATS
from pontil.runtime.models.families.registry import build_model
from pontil.runtime.models.layers.decoder import Decoder
from pontil.runtime.models.stored_rows import StoredRows
from pontil.runtime.models.weights import Packing, Weights

ROWS, COLUMNS = 40, 512
IDS = torch.tensor([0, 7, 7, 39, 21])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", LEVELS)
def test_a_row_that_is_looked_up_has_the_bits_of_the_whole_table(kind: int, dtype: torch.dtype) -> None:
    """Any bytes will do: some become numbers that are none."""
    form, generator = GGML_TYPES[kind], torch.Generator().manual_seed(kind)
    size = COLUMNS // form.numbers * form.size
    blocks = torch.randint(0, 256, (ROWS, size), dtype=torch.uint8, generator=generator)
    whole = form.read(blocks.view(-1, form.size)).view(ROWS, COLUMNS).to(dtype)
    rows = StoredRows(blocks, form, dtype)
    for ids in (IDS, IDS[:1], IDS[:0]):
        assert rows[ids].dtype == dtype and rows[ids].shape == (len(ids), COLUMNS)
        torch.testing.assert_close(rows[ids], whole[ids], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", LEVELS)
def test_the_sizes_of_blocks_are_those_that_are_read(kind: int) -> None:
    assert BLOCKS[kind] == (GGML_TYPES[kind].numbers, GGML_TYPES[kind].size) and kind in GGUF_FORMATS


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_enters_rows_as_one_with_the_whole_table_does(tmp_path: Path, tied: bool) -> None:
    config = write_tiny_llama(tmp_path / "hf", tie_word_embeddings=tied)
    path = write_tiny_gguf(tmp_path / "tiny.gguf", tmp_path / "hf", config, kind=gguf.GGMLQuantizationType.Q8_0)
    checkpoint = GgufCheckpoint.open(path)
    built = []
    for kind in (None, checkpoint.embedding_type):
        tensors = checkpoint.levels(torch.bfloat16, stored_rows=kind is not None)
        packing = Packing(kernels.opened(), stored=kind)
        model = build_model(checkpoint.config, Weights(tensors, torch.device("cpu"), torch.bfloat16, packing))
        assert isinstance(model, Decoder)
        built.append(model)
    ids = torch.arange(config.vocab_size)
    dense, stored = built
    assert isinstance(dense.embedding, torch.Tensor) and isinstance(stored.embedding, StoredRows)
    assert torch.equal(dense.embed(ids), stored.embed(ids))
    assert stored.embedding.blocks.nbytes == stored_embedding(path)
    assert stored.embedding.blocks.nbytes < dense.embedding.nbytes


def test_an_embedding_of_floats_is_read_whole(tmp_path: Path) -> None:
    config = write_tiny_llama(tmp_path / "hf")
    path = write_tiny_gguf(tmp_path / "tiny.gguf", tmp_path / "hf", config, kind=gguf.GGMLQuantizationType.F16)
    checkpoint = GgufCheckpoint.open(path)
    assert checkpoint.embedding_type is None and stored_embedding(path) is None
    assert EMBEDDING in dict(checkpoint.levels(torch.bfloat16, stored_rows=True))


def test_an_embedding_of_a_codebook_is_read_whole(tmp_path: Path) -> None:
    config = write_tiny_llama(tmp_path / "hf", hidden_size=256, intermediate_size=256, head_dim=64)
    kind = gguf.GGMLQuantizationType.IQ3_S
    path = write_tiny_gguf(tmp_path / "tiny.gguf", tmp_path / "hf", config, kind=kind, random_blocks=True)
    checkpoint = GgufCheckpoint.open(path)
    assert SCALES.keys() == CODEBOOKS and checkpoint.places[EMBEDDING].kind in CODEBOOKS
    assert checkpoint.embedding_type is None and stored_embedding(path) is None
    assert EMBEDDING in dict(checkpoint.levels(torch.bfloat16, stored_rows=True))
