# SPDX-License-Identifier: Apache-2.0
"""BERT gives transformers' hidden states, and a text's bits do not depend on the texts beside it."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import CACHE
from tiny_bert import write_tiny_bert
from transformers import BertModel

from pontil.gpu_ops.kernels.kernel_set import open_kernels
from pontil.gpu_ops.pooling import pooled, unit
from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.hf.encoder_directory import EncoderCheckpoint
from pontil.runtime.models.embedding_model import SequenceText
from pontil.runtime.models.families.bert import Bert
from pontil.runtime.models.weights import Packing, Weights

TEXTS = [[2, 5, 3], [2, 40, 41, 9, 9, 30, 3], [7], [2, *range(4, 60), 3]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("bert"))


def bert(folder: Path, kernels: str) -> Bert:
    checkpoint = EncoderCheckpoint.open(folder)
    library = open_kernels(kernels, 2, CACHE)
    return Bert(
        checkpoint.config, Weights(checkpoint.tensors(), torch.device("cpu"), torch.float32, Packing.of(library))
    )


def sequences(texts: list[list[int]]) -> list[SequenceText]:
    return [SequenceText(ids) for ids in texts]


@pytest.fixture(scope="module", params=["torch", "auto"])
def model(request: pytest.FixtureRequest, folder: Path) -> Bert:
    return bert(folder, request.param)


def test_it_computes_what_transformers_does(model: Bert, folder: Path) -> None:
    theirs = BertModel.from_pretrained(folder).eval()
    for text, ours in zip(TEXTS, model.hidden_states(sequences(TEXTS)), strict=True):
        with torch.no_grad():
            wanted = theirs(torch.tensor([text])).last_hidden_state[0]
        assert torch.allclose(ours, wanted, atol=1e-5)


@settings(max_examples=15, deadline=None)
@given(texts=st.lists(st.lists(st.integers(0, 80), min_size=1, max_size=64), min_size=1, max_size=6))
def test_a_text_has_the_bits_that_it_has_alone(model: Bert, texts: list[list[int]]) -> None:  # C16
    together = model.hidden_states(sequences(texts))
    alone = [model.hidden_states([text])[0] for text in sequences(texts)]
    assert all(map(torch.equal, together, alone))


def test_pooling() -> None:
    hidden = torch.tensor([[3.0, 0.0], [3.0, 8.0]])
    assert pooled(hidden, "mean").tolist() == [3.0, 4.0] and pooled(hidden, "last").tolist() == [3.0, 8.0]
    assert pooled(hidden, "cls").tolist() == [3.0, 0.0]
    assert unit(torch.tensor([3.0, 4.0])).tolist() == pytest.approx([0.6, 0.8])
    assert unit(torch.tensor([3.0, 4.0]), 1).tolist() == [1.0] and unit(torch.zeros(2)).tolist() == [0.0, 0.0]


def test_a_tensor_that_is_missing_is_named(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path, num_hidden_layers=2)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    with pytest.raises(ModelError, match=r"lacks encoder\.layer\.2\.attention\.self\.query\.weight"):
        bert(folder, "torch")
