# SPDX-License-Identifier: Apache-2.0
"""A real worker that scores pairs of texts: the scores of transformers, by cross-encoders and by decoders."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embedding_site import EmbeddingSite, embedding_config
from tiny_bert import write_tiny_bert
from tiny_llama import write_tiny_llama
from tiny_reranker import write_tiny_judge, write_tiny_reranker
from transformers import AutoModelForSequenceClassification, Qwen3ForCausalLM
from workers import Silent

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.config import is_encoder
from pontil.runtime.tokenizer.pair_encoder import PairEncoder, TextPair, pair_encoder
from pontil.runtime.tokenizer.tokenizer import load_tokenizer
from pontil.runtime.worker.embed.assembly import assemble_embedder

TEXTS = (("the sea at night", "a lamp"), ("lamp?", "the keeper lit the lamp."), ("no", "yes"), ("a", "b c d e f"))


def pairs_of(folder: Path) -> tuple[PairEncoder, list[TextPair]]:
    encoder = pair_encoder(load_tokenizer(folder), judges=not is_encoder(folder))
    return encoder, [encoder.pair(encoder.first(one), encoder.second(other)) for one, other in TEXTS]


def scores(folder: Path, run: Path, pairs: list[TextPair], **settings: Any) -> list[float]:
    run.mkdir(exist_ok=True)
    site = EmbeddingSite(folder, run, role="rerank", name="rerank:0", served_model_name="ranker", **settings)
    try:
        hello = site.proxy.hellos["rerank:0"]
        assert (hello.role, hello.model, hello.embedding_size) == ("rerank", "ranker", 1)
        for number, pair in enumerate(pairs):
            site.ask(str(number), pair.ids, types=pair.types)
        return [float(vector[0]) for vector in site.vectors(*map(str, range(len(pairs))))]
    finally:
        site.close()


def log_odds(chances: Any) -> Any:
    return np.log(np.array(chances, "f8") / (1 - np.array(chances, "f8")))


def test_a_cross_encoder_scores_as_transformers_does(tmp_path: Path) -> None:
    folder = write_tiny_reranker(tmp_path / "bert")
    _, pairs = pairs_of(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        logits = [model(torch.tensor([one.ids]), token_type_ids=torch.tensor([one.types])).logits for one in pairs]
    assert all(1 in pair.types for pair in pairs)
    assert np.allclose(scores(folder, tmp_path / "run", pairs), torch.sigmoid(torch.cat(logits))[:, 0], atol=1e-4)


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize(("classifier", "tied"), [(False, True), (False, False), (True, False)])
def test_a_decoder_judges_as_transformers_does(tmp_path: Path, classifier: bool, tied: bool, kernels: str) -> None:
    """Compare the scores by the logits of no and yes, or by the one row that they were made."""
    folder = write_tiny_judge(tmp_path / "judge", classifier=classifier, tied=tied)
    encoder, pairs = pairs_of(folder)
    kind: Any = AutoModelForSequenceClassification if classifier else Qwen3ForCausalLM
    model, words = kind.from_pretrained(folder).eval(), [encoder.tokenizer.token_id(one) for one in ("no", "yes")]
    right = []
    for pair in pairs:
        with torch.no_grad():
            logits = model(torch.tensor([pair.ids])).logits[0]
        right.append(torch.sigmoid(logits[0]) if classifier else torch.softmax(logits[-1, words], 0)[1])
    found = scores(folder, tmp_path / "run", pairs, kernels=kernels)
    assert np.allclose(found, right, atol=1e-4) and np.std(log_odds(found)) > 0.1, (found, right)
    assert np.allclose(log_odds(found), log_odds(right), atol=1e-2)


def test_models_that_score_nothing_are_refused(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "llama")
    write_tiny_bert(tmp_path / "bert")
    for name, says in (("llama", "no tokens no, yes"), ("bert", "embeds texts and scores none")):
        with pytest.raises(ModelError, match=says):
            assemble_embedder(embedding_config(tmp_path / name, tmp_path, role="rerank"), Silent())
