# SPDX-License-Identifier: Apache-2.0
"""A chat model and two workers that score pairs behind one proxy; one of these is killed at work."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from served import Served, launched, wait_for
from tiny_llama import write_tiny_llama
from tiny_reranker import write_tiny_judge, write_tiny_reranker
from transformers import AutoModelForSequenceClassification

from pontil.launcher.tools.conformance import rank_checks
from pontil.launcher.tools.conformance.api import Api
from pontil.launcher.tools.conformance.check import outcome
from pontil.runtime.loaders.config import is_encoder
from pontil.runtime.tokenizer.pair_encoder import pair_encoder
from pontil.runtime.tokenizer.tokenizer import load_tokenizer

pytestmark = pytest.mark.long

QUERY = "the keeper of the sea"
DOCUMENTS = [f"lamp {number} at night, {'the sea' * (number % 5)}" for number in range(400)]


@pytest.fixture(scope="module", params=[write_tiny_reranker, write_tiny_judge])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    folder = tmp_path_factory.mktemp("ranks")
    write_tiny_llama(folder / "small")
    model = request.param(folder / "ranker")
    workers = ("--role", "mixed", "--mixed", "cpu:0", "--rerank", "cpu:0,cpu:1", "--share-devices")
    with launched(folder, *workers, "--model", str(folder / "small"), "--reranking-model", str(model)) as served:
        yield served, model


def rerank(served: Served, documents: list[str], **fields: Any) -> dict[str, Any]:
    body = {"query": QUERY, "documents": documents} | fields
    answer: dict[str, Any] = served.request("POST", "/v1/rerank", body).json()
    assert "error" not in answer, answer
    return answer


def test_documents_are_ranked_as_transformers_does(ranks: tuple[Served, Path]) -> None:
    served, folder = ranks
    assert [one["id"] for one in served.get("/v1/models")["data"]] == ["small", "ranker"]
    if is_encoder(folder):
        pairs, model = pair_encoder(load_tokenizer(folder), judges=False), AutoModelForSequenceClassification
        scores = {}
        for index, text in enumerate(DOCUMENTS[:6]):
            pair = pairs.pair(pairs.first(QUERY), pairs.second(text))
            with torch.no_grad():
                types = torch.tensor([pair.types])
                logits = model.from_pretrained(folder).eval()(torch.tensor([pair.ids]), token_type_ids=types).logits
            scores[index] = float(torch.sigmoid(logits)[0, 0])
        found = {one["index"]: one["relevance_score"] for one in rerank(served, DOCUMENTS[:6])["results"]}
        assert found == pytest.approx(scores, abs=1e-4)


def test_the_conformance_suite_passes(ranks: tuple[Served, Path]) -> None:
    api = Api(f"http://127.0.0.1:{ranks[0].port}", "small", {})
    found = [outcome(check, api) for check in rank_checks.CHECKS]
    assert {one.verdict for one in found} == {"pass"}, found


def disturbed(served: Served) -> tuple[dict[str, Any], bool]:
    """Rank while a worker is killed. Return the answer, and whether pairs were moved: all may have been computed."""

    def busy() -> bool:
        return asking.done() or served.topology()["rerank:0"].get("load", {}).get("in_flight", 0) > 0

    before = served.metric('pontil_failovers_total{cause="died"}')
    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(rerank, served, DOCUMENTS * 5)
        wait_for(busy, 60, "work of rerank:0")
        served.kill("rerank:0")
        answer = asking.result(120)
    return answer, served.metric('pontil_failovers_total{cause="died"}') > before


def test_a_killed_worker_changes_no_bit(ranks: tuple[Served, Path]) -> None:  # C16
    served, _ = ranks
    calm = rerank(served, DOCUMENTS)
    scores = {one["index"]: one["relevance_score"] for one in calm["results"]}
    for _ in range(4):
        answer, moved = disturbed(served)
        assert answer["usage"]["prompt_tokens"] == 5 * calm["usage"]["prompt_tokens"]
        assert {one["index"]: one["relevance_score"] for one in answer["results"]} == {
            number: scores[number % len(DOCUMENTS)] for number in range(5 * len(DOCUMENTS))
        }
        served.living("rerank:0")
        if moved:
            return
    pytest.fail("no worker died at work")
