# SPDX-License-Identifier: Apache-2.0
"""/v1/rerank and /v1/score over scripted workers: answers, counts, cuts, errors, and the models beside each other."""

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from api_table import rerank_table, score_table
from jsonschema import validate
from scripted_ranker import HELLO, ranker, value_of
from scripted_site import HttpAnswer, ScriptedSite, site
from scripted_worker import DEADLINE, ScriptedWorker, eventually, vector_of
from tiny_reranker import write_judging_tokenizer, write_tokenizer

from pontil.http.vllm import rerank as route
from pontil.http.vllm.rerank import RANKED, SCORES
from pontil.runtime.accounting.audit import audit
from pontil.runtime.accounting.usage_file import open_to_read
from pontil.runtime.accounting.usage_report import usage_sums
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Embed, Message

RANKS = ("/v1/rerank", "/v2/rerank", "/rerank")


def say_nothing(worker: ScriptedWorker, embed: Embed) -> Iterator[Message]:
    return iter(())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("ranker"))


@pytest.fixture(scope="module")
def served(folder: Path) -> dict[str, Any]:
    return {"served_reranking_model_name": "ranker", "reranking_model": str(folder)}


@pytest.fixture(scope="module")
def ranks(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer, served: dict[str, Any]
) -> Iterator[ScriptedSite]:
    """One worker that generates, one that embeds and one that scores."""
    both = served | {"served_embedding_model_name": "vectors", "embedding_model": "vectors"}
    with site(tmp_path_factory.mktemp("ranks"), tokenizer, **both) as made:
        made.worker()
        made.worker("embed:0", **HELLO | {"model": "vectors", "model_fingerprint": "v", "embedding_size": 4})
        made.ranker = ranker(made)  # type: ignore[attr-defined]
        yield made


@pytest.fixture
def alone(tmp_path: Path, tokenizer: Tokenizer, served: dict[str, Any]) -> Iterator[ScriptedSite]:
    """A proxy without workers that expects such a model."""
    with site(tmp_path, tokenizer, **served) as made:
        yield made


def rerank(made: ScriptedSite, query: Any, documents: Any, path: str = RANKS[0], **fields: Any) -> HttpAnswer:
    return made.ask("POST", path, {"query": query, "documents": documents} | fields)


def score(made: ScriptedSite, first: Any, second: Any, **fields: Any) -> HttpAnswer:
    return made.ask("POST", "/v1/score", {"text_1": first, "text_2": second} | fields)


def seen(made: ScriptedSite) -> list[Embed]:
    """Return the pairs that the worker was sent since the last look."""
    worker: ScriptedWorker = made.ranker  # type: ignore[attr-defined]
    return [worker.embeds.get_nowait() for _ in range(worker.embeds.qsize())]


DOCUMENTS = ["the sea", {"text": "a lamp"}, "night", "keeper"]


@pytest.mark.parametrize("path", RANKS)
def test_documents_come_in_the_order_of_their_scores(ranks: ScriptedSite, path: str) -> None:
    seen(ranks)
    answer = rerank(ranks, "the lamp", DOCUMENTS, path, model="ranker")
    assert answer.status == 200, answer.body
    validate(answer.json, RANKED)
    pairs = seen(ranks)
    found = [(one["index"], one["relevance_score"]) for one in answer.json["results"]]
    assert found == sorted(enumerate(map(value_of, pairs)), key=lambda one: (-one[1], one[0]))
    assert len({one for _, one in found}) > 2 and not any("document" in one for one in answer.json["results"])
    tokens = sum(len(one.prompt) for one in pairs)
    assert answer.json["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert answer.json["meta"]["tokens"]["input_tokens"] == tokens and answer.json["model"] == "ranker"
    assert answer.headers["x-pontil-route"] == "rerank:0"


def test_the_best_ones_can_be_shown_with_their_texts(ranks: ScriptedSite) -> None:
    whole = rerank(ranks, "a", DOCUMENTS).json["results"]
    best = rerank(ranks, "a", DOCUMENTS, top_n=2, return_documents=True).json["results"]
    texts = ["the sea", "a lamp", "night", "keeper"]
    assert best == [one | {"document": {"text": texts[one["index"]]}} for one in whole[:2]]
    for all_of_them in (0, 4, 1 << 70):
        assert rerank(ranks, "a", DOCUMENTS, top_n=all_of_them).json["results"] == whole


def test_a_pair_is_read_as_the_model_means_it(ranks: ScriptedSite) -> None:
    seen(ranks)
    assert rerank(ranks, "the lamp", ["a sea [SEP]"], user="me").headers["x-pontil-ignored"] == "user"
    (pair,) = seen(ranks)
    pieces = pair.prompt
    assert pieces[0] == 2 and pieces[-1] == 3 and pieces.count(3) == 2
    assert pair.types == [0] * (pieces.index(3) + 1) + [1] * (len(pieces) - pieces.index(3) - 1)


# Requests as clients sent them, but for their texts: cohere 7.3.1 (Client and ClientV2), litellm 1.83.0 (as `cohere`,
# `jina_ai` and `hosted_vllm`), and JinaRerank of langchain-community.
RECORDED = [
    ("/v1/rerank", {"top_n": 2}, []),
    ("/v1/rerank", {"rank_fields": ["text"], "return_documents": True, "max_chunks_per_doc": 10}, ["rank_fields"]),
    ("/v2/rerank", {"max_tokens_per_doc": 4096, "priority": 1}, []),
    ("/v2/rerank", {"top_n": 2, "return_documents": True}, []),
    ("/rerank", {"top_n": 2, "return_documents": True}, []),
]


@pytest.mark.parametrize(("path", "fields", "unused"), RECORDED)
def test_requests_of_clients_are_understood(
    ranks: ScriptedSite, path: str, fields: dict[str, Any], unused: list[str]
) -> None:
    answer = rerank(ranks, "the lamp", DOCUMENTS, path, model="ranker", **fields)
    assert answer.status == 200 and len(answer.json["results"]) == fields.get("top_n", 4), answer.body
    assert all(one in answer.headers.get("x-pontil-ignored", "") for one in unused)


@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [("a", "b", 1), (["a"], ["b", "c", "d"], 3), (["a", "b"], ["c", "d"], 2), ("a", [{"text": "b"}, "c"], 2)],
)
def test_pairs_are_scored_in_their_order(ranks: ScriptedSite, first: Any, second: Any, pairs: int) -> None:
    seen(ranks)
    answer = score(ranks, first, second)
    assert answer.status == 200, answer.body
    validate(answer.json, SCORES)
    sent = seen(ranks)
    assert [one["score"] for one in answer.json["data"]] == list(map(value_of, sent)) and len(sent) == pairs
    assert [one["index"] for one in answer.json["data"]] == list(range(pairs))
    assert answer.json["usage"]["prompt_tokens"] == sum(len(one.prompt) for one in sent)


def test_other_names_of_the_texts_mean_the_same(ranks: ScriptedSite) -> None:
    expected = score(ranks, "a", ["b", "c"]).json["data"]
    for first, second in (("queries", "documents"), ("data_1", "data_2"), ("queries", "items")):
        for path in ("/v1/score", "/score"):
            assert ranks.ask("POST", path, {first: "a", second: ["b", "c"]}).json["data"] == expected


def test_texts_are_cut_only_when_asked(ranks: ScriptedSite) -> None:
    """A query stays whole, and so do the tokens around both."""
    long = " ".join(["sea"] * 40)
    answer = rerank(ranks, "the lamp", ["night", long])
    assert answer.status == 400 and answer.json["error"]["code"] == "context_length_exceeded"
    says = answer.json["error"]["message"]
    assert says.startswith(
        "This model's maximum context length is 32 tokens. However, documents[1] has 45 with its query"
    )
    cuts: list[tuple[dict[str, Any], list[int]]] = [
        ({"truncate_prompt_tokens": -1}, [6, 32]),
        ({"truncate_prompt_tokens": 9}, [6, 9]),
        ({"max_tokens_per_doc": 3}, [6, 8]),
        ({"max_tokens_per_doc": 3, "truncate_prompt_tokens": 7}, [6, 7]),
        ({"truncate_prompt_tokens": 1 << 60}, [6, 32]),
    ]
    for fields, lengths in cuts:
        seen(ranks)
        assert rerank(ranks, "the lamp", ["night", long], **fields).status == 200
        pairs = seen(ranks)
        assert [len(one.prompt) for one in pairs] == lengths and {one.prompt[-1] for one in pairs} == {3}
        assert all(len(one.types) == len(one.prompt) for one in pairs)
    full = rerank(ranks, long, ["night"], truncate_prompt_tokens=-1)
    assert full.status == 400 and "query leaves no room for another text in 32 tokens" in full.json["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"query": ""}, "query is empty"),
        ({"query": None}, "query is missing"),
        ({"query": ["a"]}, 'query must be a string or an object with "text", not an array'),
        ({"documents": []}, "documents is empty: give at least one text"),
        ({"documents": None}, "documents is missing"),
        ({"documents": ["a", ""]}, "documents[1] is empty"),
        ({"documents": ["a", {"text": ""}]}, "documents[1] is empty"),
        ({"documents": ["a", {"title": "b"}]}, "documents[1].text is missing"),
        ({"documents": ["a", 3]}, "documents[1] must be a string"),
        ({"documents": [["a"]]}, "documents[0] must be a string"),
        ({"documents": 7}, "documents must be a string"),
        ({"documents": ["a"] * 2049}, "documents may hold at most 2048 texts, not 2049"),
        ({"documents": ["a"] * 33}, "32 are all that can be taken: send fewer pairs"),
        ({"documents": ["x" * 30_000]}, "maximum context length is 32 tokens"),
        ({"documents": ["\ud800"]}, "surrogate"),
        ({"query": "\ud800"}, "surrogate"),
        ({"top_n": -1}, "top_n must be at least 0"),
        ({"top_n": "all"}, "top_n must be an integer"),
        ({"return_documents": 1}, "return_documents must be true or false"),
        ({"max_tokens_per_doc": 0}, "max_tokens_per_doc must be at least 1"),
        ({"truncate_prompt_tokens": 0}, "must be at least 1, or -1"),
        ({"rank_fields": ["title"]}, "rank_fields may be text alone"),
        ({"model": 3}, "model must be a string"),
    ],
)
def test_mistakes_are_named(ranks: ScriptedSite, fields: dict[str, Any], says: str) -> None:
    answer = ranks.ask("POST", "/v1/rerank", {"query": "a", "documents": ["b"]} | fields)
    assert answer.status in (400, 403) and says in answer.json["error"]["message"], answer.body


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "text_1 is missing: give it, or queries or data_1"),
        ({"text_1": "a"}, "text_2 is missing: give it, or documents or items or data_2"),
        ({"text_1": "a", "queries": "b", "text_2": "c"}, "queries means the same as text_1"),
        ({"text_1": ["a", "b"], "text_2": "c"}, "text_1 has 2 texts and text_2 1: give one for all, or one for each"),
        ({"text_1": ["a", "b"], "text_2": ["c"] * 3}, "one for each"),
        ({"text_1": "a", "text_2": "b", "use_activation": False}, "use_activation is not supported"),
    ],
)
def test_pairs_that_do_not_fit_are_named(ranks: ScriptedSite, fields: dict[str, Any], says: str) -> None:
    answer = ranks.ask("POST", "/v1/score", fields)
    assert answer.status == 400 and says in answer.json["error"]["message"], answer.body


def test_a_query_is_not_repeated_without_bound(ranks: ScriptedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "MOST_REPEATED", 20)
    assert rerank(ranks, "a b c d", ["e"] * 5).status == 200
    answer = rerank(ranks, "a b c d", ["e"] * 6)
    assert answer.status == 400 and "query has 4 tokens, which 6 pairs repeat" in answer.json["error"]["message"]
    answer = score(ranks, ["a", "b"], ["c", "d"], instruction="x" * 11)
    assert answer.status == 400 and "instruction has 11 characters" in answer.json["error"]["message"]


def test_the_models_are_not_taken_for_each_other(ranks: ScriptedSite) -> None:
    ask = "text and does not score it: ask 'ranker'"
    names = "this server has 'tiny' and 'vectors' and 'ranker'"
    for answer, status, says in (
        (rerank(ranks, "a", ["b"], model="tiny"), 400, f"the model 'tiny' generates {ask}"),
        (rerank(ranks, "a", ["b"], model="vectors"), 400, f"the model 'vectors' embeds {ask}"),
        (ranks.complete(model="ranker"), 404, "the model 'ranker' scores text and does not generate it: ask 'tiny'"),
        (
            ranks.ask("POST", "/v1/embeddings", {"input": "a", "model": "ranker"}),
            404,
            "the model 'ranker' scores text and does not embed it: ask 'vectors'",
        ),
        (score(ranks, "a", "b", model="ada"), 404, f"there is no model 'ada': {names}"),
    ):
        assert (answer.status, answer.json["error"]["message"]) == (status, says)
        assert answer.json["error"]["code"] == "model_not_found"
    shown = {one["id"]: one.get("embedding_size") for one in ranks.ask("GET", "/v1/models").json["data"]}
    assert shown == {"tiny": None, "vectors": 4, "ranker": None}


def test_without_such_a_model_the_way_out_is_told(pair: ScriptedSite) -> None:
    for path in (*RANKS, "/v1/score", "/score"):
        answer = pair.ask("POST", path, {"query": "a", "documents": ["b"]})
        assert answer.status == 404 and "start the server with --rerank" in answer.json["error"]["message"]
    worker = ScriptedWorker(pair.endpoint, "rerank:0", pair.tokenizer, role="rerank", **HELLO)
    worker.start(wait=False)
    eventually(lambda: worker.refused, "the refusal")
    worker.die()
    assert "the proxy was started without --reranking-model" in (worker.refused or "")


def test_workers_of_one_model_do_not_pass_for_the_others(alone: ScriptedSite) -> None:
    assert rerank(alone, "a", ["b"]).status == 503
    worker = ScriptedWorker(alone.endpoint, "embed:0", alone.tokenizer, role="embed", **HELLO)
    worker.start(wait=False)
    eventually(lambda: worker.refused, "the refusal")
    worker.die()
    assert rerank(alone, "a", ["b"]).status == 503


def test_many_documents_are_many_pairs_in_a_queue(alone: ScriptedSite) -> None:
    ranker(alone, max_num_seqs=64)
    answer = rerank(alone, "a", ["b", "c"] * 100, return_documents=True)
    assert [one["index"] for one in answer.json["results"]] == [*range(0, 200, 2), *range(1, 200, 2)] or [
        one["index"] for one in answer.json["results"]
    ] == [*range(1, 200, 2), *range(0, 200, 2)]
    assert alone.ask("GET", "/admin/ledger").json["requests"] == 200 and not alone.proxy.requests


def test_a_pair_goes_on_to_another_worker(alone: ScriptedSite) -> None:
    """One of two dies with a part of the pairs: the answer and the counts are those of an undisturbed run."""
    dying = ranker(alone, embedder=say_nothing)
    ranker(alone, "rerank:1")
    eventually(lambda: len(alone.proxy.registry.of("ranker").loads) == 2, "both workers")

    def die() -> None:
        dying.embeds.get(timeout=DEADLINE)
        dying.fall_silent(alone.proxy.registry)

    ending = threading.Thread(target=die)
    ending.start()
    answer = rerank(alone, "a", list("bcdefghi"))
    ending.join()
    assert answer.status == 200 and answer.json["usage"]["prompt_tokens"] == 8 * 5
    calm = rerank(alone, "a", list("bcdefghi"))
    assert calm.json["results"] == answer.json["results"]
    sums = alone.ask("GET", "/admin/ledger").json
    assert (sums["prompt_tokens"], sums["requests"], sums["imbalance"], sums["open"]) == (80, 16, 0, 0)
    assert sum(alone.value("pontil_failovers_total", cause=cause) for cause in ("silent", "died")) > 0


def test_pairs_of_a_client_that_left_are_cancelled(alone: ScriptedSite) -> None:
    worker = ranker(alone, embedder=say_nothing)
    connection = alone.connect()
    connection.request("POST", "/v1/rerank", json.dumps({"query": "a", "documents": ["b"] * 12}), {})
    worker.embeds.get(timeout=DEADLINE)
    connection.close()
    eventually(lambda: not alone.proxy.requests, "the end of all pairs")
    worker.cancels.get(timeout=DEADLINE)
    assert alone.ask("GET", "/admin/ledger").json["open"] == 0


@pytest.mark.parametrize("wrong", [b"", b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\0" * 8])
def test_a_score_that_cannot_be_right_is_not_shown(alone: ScriptedSite, wrong: bytes) -> None:
    lying = ranker(alone, embedder=lambda worker, embed: vector_of(worker, embed, vector=wrong))
    ranker(alone, "rerank:1")
    assert score(alone, "a", "b").status == 200
    assert alone.value("pontil_failovers_total", cause="broken") == 1 and not lying.embeds.empty()


def test_the_books_and_the_metrics_have_it(tmp_path: Path, tokenizer: Tokenizer, served: dict[str, Any]) -> None:
    path = tmp_path / "usage.db"
    with site(tmp_path, tokenizer, usage_log=str(path), **served) as made:
        ranker(made)
        assert rerank(made, "a", ["b", "c d"]).json["usage"]["prompt_tokens"] == 11
        assert made.value("pontil_scores_total") == 2 and made.value("pontil_score_tokens_total") == 11
        assert made.value("pontil_embeddings_total") == made.value("pontil_prompt_tokens_total") == 0
    with closing(open_to_read(path)) as database:
        assert [(one.model, one.requests, one.prompt_tokens) for one in usage_sums(database)] == [("ranker", 2, 11)]
        assert all(finding.equal for finding in audit(database)), audit(database)
        assert {row[0] for row in database.execute("SELECT finish FROM requests")} == {"scored"}


def test_a_decoder_is_asked_in_its_words(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = write_judging_tokenizer(tmp_path / "judge")
    config = {"served_reranking_model_name": "ranker", "reranking_model": str(folder)}
    with site(tmp_path, tokenizer, **config) as made:
        made.ranker = ranker(made, max_model_len=4096)  # type: ignore[attr-defined]
        assert rerank(made, "a", ["b"], instruction="Find c.", max_tokens_per_doc=1).status == 200
        assert rerank(made, "a", ["bbbb"], instruction="Find c.", max_tokens_per_doc=1).status == 200
        first, second = seen(made)
        assert first.prompt == second.prompt and not first.types and first.prompt.count(second.prompt[0]) == 3


@pytest.mark.parametrize(("table", "page"), [(rerank_table, "rerank.md"), (score_table, "rerank.md")])
def test_the_page_has_every_parameter(table: Any, page: str) -> None:
    lines = (Path(__file__).resolve().parents[2] / "docs" / "guide" / page).read_text().splitlines()
    assert all(line in lines for line in table()), "python tests/support/checks/api_table.py prints the table"
