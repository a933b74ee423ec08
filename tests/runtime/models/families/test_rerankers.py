# SPDX-License-Identifier: Apache-2.0
"""Cross-encoders give transformers' scores of pairs, and a pair's bits do not depend on the pairs beside it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from kernels import CACHE
from tiny_bert import write_tiny_bert
from tiny_reranker import KINDS, write_tiny_reranker
from transformers import AutoModelForSequenceClassification

from pontil.gpu_ops.kernels.kernel_set import open_kernels
from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.hf.encoder_directory import EncoderCheckpoint
from pontil.runtime.models.embedding_model import SequenceText
from pontil.runtime.models.families.bert import Bert
from pontil.runtime.models.pair_scores import PairScores
from pontil.runtime.models.weights import Packing, Weights

PAIRS = [
    SequenceText([2, 5, 3, 9, 30, 3], [0, 0, 0, 1, 1, 1]),
    SequenceText([2, 40, 41, 3, 9, 3], [0, 0, 0, 0, 1, 1]),
    SequenceText([2, 3, *range(4, 60), 3], [0, 0, *[1] * 57]),
    SequenceText([2, 7, 3]),
]


def scorer(folder: Path, kernels: str) -> PairScores:
    checkpoint = EncoderCheckpoint.open(folder, scores=True)
    library = open_kernels(kernels, 2, CACHE)
    weights = Weights(checkpoint.tensors(), torch.device("cpu"), torch.float32, Packing.of(library))
    model = Bert(checkpoint.config, weights, checkpoint.head)
    assert model.head is not None
    return PairScores(model, model.head)


def theirs(folder: Path, pair: SequenceText, kind: str) -> float:
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    types = {"token_type_ids": torch.tensor([pair.types])} if pair.types and kind == "bert" else {}
    with torch.no_grad():
        return float(model(torch.tensor([pair.ids]), torch.ones(1, len(pair.ids)), **types).logits[0, 0])


@pytest.mark.parametrize("kernels", ["torch", "auto"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_pair_has_the_score_that_transformers_gives(tmp_path: Path, kind: str, kernels: str) -> None:  # C16
    folder = write_tiny_reranker(tmp_path, kind)
    model = scorer(folder, kernels)
    pairs = PAIRS if kind == "bert" else [SequenceText(pair.ids) for pair in PAIRS]
    ours = model.of(pairs)
    logits = torch.tensor([theirs(folder, pair, kind) for pair in pairs])
    assert torch.allclose(torch.cat(ours), torch.sigmoid(logits), atol=1e-4) and logits.std() > 0.1
    assert all(torch.equal(one, model.of([pair])[0]) for one, pair in zip(ours, pairs, strict=True))
    if kind == "bert":
        swapped = SequenceText(PAIRS[0].ids, [1 - one for one in PAIRS[0].types])
        assert not torch.allclose(model.of([swapped])[0], ours[0], atol=1e-4)


@pytest.mark.parametrize(
    "stated",
    [
        {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
        {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
    ],
)
def test_a_model_may_say_that_its_score_is_the_number_itself(tmp_path: Path, stated: dict[str, Any]) -> None:
    folder = write_tiny_reranker(tmp_path, **stated)
    assert float(scorer(folder, "torch").of(PAIRS[:1])[0]) == pytest.approx(theirs(folder, PAIRS[0], "bert"), abs=1e-4)


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        ("bert", {"num_labels": 3}, "3 labels"),
        ("bert", {"sentence_transformers": {"activation_fn": "torch.nn.Tanh"}}, "'torch.nn.Tanh'"),
        ("bert", {"sentence_transformers": 3}, "an object as sentence_transformers"),
        ("roberta", {"pad_token_id": 0}, "pad_token_id is 0"),
    ],
)
def test_what_cannot_be_computed_is_refused(tmp_path: Path, kind: str, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        EncoderCheckpoint.open(write_tiny_reranker(tmp_path, kind, **fields), scores=True)


def test_models_are_not_taken_for_each_other(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="embeds texts and scores none"):
        EncoderCheckpoint.open(write_tiny_bert(tmp_path / "bert"), scores=True)
    with pytest.raises(ModelError, match="scores pairs of texts and embeds none"):
        EncoderCheckpoint.open(write_tiny_reranker(tmp_path / "reranker"))
