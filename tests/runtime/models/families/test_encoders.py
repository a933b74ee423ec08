# SPDX-License-Identifier: Apache-2.0
"""Encoders of each kind embed texts as transformers does, from files with or without the heads that they were trained
with."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embedding_site import embedding_config
from tiny_reranker import KINDS, POSITIONS, configured
from transformers import AutoModel, AutoModelForMaskedLM
from workers import Silent

from pontil.runtime.models.embedding_model import SequenceText
from pontil.runtime.worker.embed.assembly import assemble_embedder

TEXTS = [[2, 5, 3], [2, 40, 41, 9, 9, 30, 3], [7], [2, *range(4, 2 + POSITIONS), 3]]


@pytest.mark.parametrize("stored", [AutoModel, AutoModelForMaskedLM])
@pytest.mark.parametrize("kernels", ["torch", "auto"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_text_has_the_vector_of_its_mean_row(tmp_path: Path, kind: str, kernels: str, stored: Any) -> None:
    """Compare whole texts up to the longest one. A model for masked words has its names behind a prefix."""
    config, tokenizer = configured(kind)
    torch.manual_seed(0)
    stored.from_config(config).save_pretrained(tmp_path)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    embedder = assemble_embedder(embedding_config(tmp_path, tmp_path, kernels=kernels), Silent())
    assert embedder.max_model_len == len(TEXTS[-1]) == POSITIONS
    theirs = AutoModel.from_pretrained(tmp_path).eval()
    found = embedder.vectors([SequenceText(ids) for ids in TEXTS])
    for ids, vector in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            row = theirs(torch.tensor([ids])).last_hidden_state[0].mean(0)
        assert np.allclose(np.frombuffer(vector, "<f4"), row / row.norm(), atol=1e-4)
        assert embedder.vectors([SequenceText(ids)]) == [vector]
    assert len(set(found)) == len(TEXTS)
