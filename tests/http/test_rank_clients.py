# SPDX-License-Identifier: Apache-2.0
"""Ranked documents and scored pairs as others see them: the limits of a key, and the conformance suite."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_api import Fault, found_with, status, text
from scripted_ranker import ranker
from scripted_site import HttpAnswer, ScriptedSite, site
from tiny_reranker import write_tokenizer

from pontil.launcher.tools.conformance.api import Api
from pontil.launcher.tools.conformance.check import outcome
from pontil.launcher.tools.conformance.rank_checks import CHECKS
from pontil.runtime.tokenizer.tokenizer import Tokenizer

ALICE, BOB = "sk-alice-0123456789", "sk-bob-0123456789"
CALLERS = tuple((name, hashlib.sha256(key.encode()).hexdigest()) for name, key in (("alice", ALICE), ("bob", BOB)))
TOPIC = "rerank and score"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = write_tokenizer(tmp_path_factory.mktemp("ranker"))
    return {"served_reranking_model_name": "ranker", "reranking_model": str(folder)}


@pytest.fixture(scope="module")
def ranks(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer, served: dict[str, Any]
) -> Iterator[ScriptedSite]:
    with site(tmp_path_factory.mktemp("ranks"), tokenizer, **served) as made:
        ranker(made)
        yield made


def rerank(made: ScriptedSite, key: str, documents: list[str], path: str = "/v1/rerank") -> HttpAnswer:
    body = {"query": "a", "documents": documents} if path == "/v1/rerank" else {"text_1": "a", "text_2": documents}
    return made.ask("POST", path, body, {"authorization": f"Bearer {key}"})


@pytest.mark.parametrize("path", ["/v1/rerank", "/v1/score"])
def test_each_pair_is_a_request_of_its_key(
    tmp_path: Path, tokenizer: Tokenizer, served: dict[str, Any], path: str
) -> None:
    """The pairs of a request are let in together or not at all."""
    limits = (("alice", (("requests", 3.0), ("rate", 4.0))),)
    with site(tmp_path, tokenizer, callers=CALLERS, allowances=limits, **served) as made:
        worker = ranker(made)
        never = rerank(made, ALICE, ["b"] * 4, path)
        assert (never.status, never.json["error"]["code"]) == (400, "key_limit_exceeded"), never.body
        assert rerank(made, ALICE, ["b"] * 3, path).status == 200
        later = rerank(made, ALICE, ["b"] * 3, path)
        assert (later.status, later.json["error"]["code"]) == (429, "rate_limit_exceeded"), later.body
        assert later.headers["retry-after"]
        assert worker.embeds.qsize() == 3, "nothing of it has begun"
        assert rerank(made, ALICE, ["b"], path).status == 200 == rerank(made, BOB, ["b"] * 9, path).status
        assert made.value("pontil_requests_refused_total", reason="key_limit") == 3, "pairs"


def test_the_tokens_of_pairs_are_those_of_their_key(
    tmp_path: Path, tokenizer: Tokenizer, served: dict[str, Any]
) -> None:
    """A pair of single letters has 5 tokens."""
    limits = (("alice", (("tokens", 12.0),)),)
    with site(tmp_path, tokenizer, callers=CALLERS, allowances=limits, **served) as made:
        worker = ranker(made)
        assert rerank(made, ALICE, ["b", "c"]).json["usage"]["prompt_tokens"] == 10
        never = rerank(made, ALICE, ["b", "c", "d"])
        assert (never.status, never.json["error"]["code"]) == (400, "key_limit_exceeded"), never.body
        assert worker.embeds.qsize() == 2 and rerank(made, BOB, ["b", "c", "d"]).status == 200
        assert rerank(made, ALICE, ["b", "c"]).status == 200, "what has ended holds none"


def test_this_server_passes_the_checks(ranks: ScriptedSite) -> None:
    found = [outcome(check, Api(f"http://127.0.0.1:{ranks.port}", "tiny", {})) for check in CHECKS]
    assert {one.verdict for one in found} == {"pass"}, found


@pytest.mark.parametrize(
    ("fault", "part"),
    [
        (text('"results": ?', '"data":'), "an answer has an id"),
        (text(r'"index": ?1', '"index":0'), "an answer has an id"),
        (text(r'"relevance_score": ?', '"relevance_score":-'), "an answer has an id"),
        (text(r'"index": ?0', '"index":1'), "equal documents"),
        (text(r'"index": ?(0|3)', '"index":1'), "top_n"),
        (text("keeper lit", "sea lit"), "return_documents"),
        (text(r'"score": ?', '"score":1'), "pairs are scored"),
        (text(r'"total_tokens": ?', '"total_tokens":1'), "pairs are scored"),
        (text(r'"score": ?', '"score":2'), "as many texts"),
        (text("documents is missing", "no"), "without documents"),
        (status(400, 500), "without documents"),
    ],
)
def test_a_fault_of_a_ranking_is_found(ranks: ScriptedSite, fault: Fault, part: str) -> None:
    found = found_with(fault, ranks.port, "tiny", TOPIC, part)
    assert found.verdict == "differs" and found.detail.isprintable(), found


@pytest.mark.parametrize(
    ("fault", "detail"),
    [(text(".+", "404 page not found"), "there is nothing at /v1/rerank"), (text("0", "0"), "start the server with")],
)
def test_a_server_without_such_a_model_says_so(pair: ScriptedSite, fault: Fault, detail: str) -> None:
    found = found_with(fault, pair.port, "tiny", TOPIC, "an answer has an id")
    assert found.verdict == "refused" and detail in found.detail
