# SPDX-License-Identifier: Apache-2.0
"""/v1/embeddings over scripted workers: answers, counts, errors, and the two models beside each other."""

import base64
import struct
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from api_table import embeddings_table
from jsonschema import validate
from scripted_site import HttpAnswer, ScriptedSite, site
from scripted_worker import DEADLINE, EMBEDDING_SIZE, ScriptedWorker, eventually, vector_of

from pontil.http.openai.embeddings.route import EMBEDDINGS
from pontil.http.stream.reply_schema import MODELS
from pontil.runtime.accounting.audit import audit
from pontil.runtime.accounting.usage_file import open_to_read
from pontil.runtime.accounting.usage_report import usage_sums
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Embed, Failed, Message

SERVED = {"served_embedding_model_name": "vectors", "embedding_model": "vectors"}
HELLO: dict[str, Any] = {
    "model": "vectors", "model_fingerprint": "v", "kv_fingerprint": "", "embedding_size": EMBEDDING_SIZE,
    "max_model_len": 32, "block_size": 32,
}  # fmt: skip


def embedder(made: ScriptedSite, name: str = "embed:0", **options: Any) -> ScriptedWorker:
    return made.worker(name, **(HELLO | options))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    """One worker that generates and one that embeds."""
    with site(tmp_path_factory.mktemp("both"), tokenizer, **SERVED) as made:
        made.worker()
        embedder(made)
        yield made


@pytest.fixture
def alone(tmp_path: Path, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    """A proxy without workers that expects both models."""
    with site(tmp_path, tokenizer, **SERVED) as made:
        yield made


def embed(made: ScriptedSite, given: Any, **fields: Any) -> HttpAnswer:
    return made.ask("POST", "/v1/embeddings", {"input": given} | fields)


def vectors(answer: HttpAnswer) -> list[list[float]]:
    assert answer.status == 200, answer.body
    validate(answer.json, EMBEDDINGS)
    assert [one["index"] for one in answer.json["data"]] == list(range(len(answer.json["data"])))
    return [one["embedding"] for one in answer.json["data"]]


def test_each_input_has_a_vector_in_its_place(both: ScriptedSite) -> None:
    answer = embed(both, [[5, 6, 7, 8, 9], [1], [2, 3]], model="vectors")
    assert vectors(answer) == [[5, 6, 7, 8], [1, 0, 0, 0], [2, 3, 0, 0]]
    assert answer.json["usage"] == {"prompt_tokens": 8, "total_tokens": 8} and answer.json["model"] == "vectors"
    assert answer.headers["x-pontil-route"] == "embed:0"
    assert vectors(embed(both, [5, 6])) == [[5, 6, 0, 0]] and vectors(embed(both, [5, 6], dimensions=1)) == [[5]]


def test_texts_are_encoded_by_its_tokenizer(both: ScriptedSite) -> None:
    ids = both.tokenizer.encode("hello", True)
    answer = embed(both, ["hello"] * 3, user="me")
    assert vectors(answer) == [[float(one) for one in (*ids, 0, 0, 0, 0)][:4]] * 3
    assert answer.json["usage"]["prompt_tokens"] == 3 * len(ids) and answer.headers["x-pontil-ignored"] == "user"


def test_ollamas_paths_have_the_same_numbers(both: ScriptedSite) -> None:
    plain = embed(both, ["hi", "there"])
    answer = both.ask("POST", "/api/embed", {"model": "vectors:latest", "input": ["hi", "there"]}).json
    assert answer["embeddings"] == vectors(plain) and answer["model"] == "vectors" and answer["total_duration"] > 0
    assert answer["prompt_eval_count"] == plain.json["usage"]["prompt_tokens"]
    older = both.ask("POST", "/api/embeddings", {"model": "vectors", "prompt": "hi"}).json
    assert older == {"embedding": answer["embeddings"][0]}
    long = {"model": "vectors", "input": "x" * 40}
    assert both.ask("POST", "/api/embed", long).json["prompt_eval_count"] == 32, "cut, unless that is declined"
    refused = both.ask("POST", "/api/embed", long | {"truncate": False})
    assert refused.status == 400 and "maximum context length" in refused.json["error"]
    assert both.ask("POST", "/api/embed", {"model": "nobody", "input": "x"}).status == 404
    assert both.ask("POST", "/api/embed", {"model": "vectors", "input": []}).status == 400
    assert [one["name"] for one in both.ask("GET", "/api/tags").json["models"]] == ["tiny:latest", "vectors:latest"]
    assert both.ask("POST", "/api/show", {"model": "vectors"}).json["capabilities"] == ["embedding"]


def test_base64_has_the_same_numbers(both: ScriptedSite) -> None:
    (coded,) = (one["embedding"] for one in embed(both, [5, 6], encoding_format="base64").json["data"])
    assert struct.unpack("<4f", base64.b64decode(coded)) == (5.0, 6.0, 0.0, 0.0)


def test_more_inputs_than_a_worker_has_seats_wait_for_their_turn(both: ScriptedSite) -> None:
    assert vectors(embed(both, [[number] for number in range(20)])) == [[number, 0, 0, 0] for number in range(20)]


def test_many_inputs_are_admitted_in_portions(alone: ScriptedSite) -> None:
    embedder(alone, max_num_seqs=64)
    given = [[number, 9] for number in range(150)]
    assert vectors(embed(alone, given)) == [[number, 9, 0, 0] for number in range(150)]
    assert alone.ask("GET", "/admin/ledger").json["requests"] == 150 and not alone.proxy.requests


def test_a_text_is_cut_only_when_asked(both: ScriptedSite) -> None:
    assert embed(both, [list(range(40))], truncate_prompt_tokens=-1).json["usage"]["prompt_tokens"] == 32
    assert vectors(embed(both, [[9, 8, 7]], truncate_prompt_tokens=2)) == [[9, 8, 0, 0]]
    answer = embed(both, [[1], list(range(40))])
    assert answer.status == 400 and answer.json["error"]["code"] == "context_length_exceeded"
    says = answer.json["error"]["message"]
    assert says.startswith("This model's maximum context length is 32 tokens. However, input[1] has 40 tokens")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"input": ""}, "input is empty"),
        ({"input": []}, "input is empty"),
        ({"input": [[1], []]}, "input is empty"),
        ({"input": ["a", [1]]}, "must hold either strings or lists"),
        ({"input": 3}, "input must be a string"),
        ({}, "input is missing"),
        ({"input": [1 << 40]}, "outside the vocabulary"),
        ({"input": "a", "dimensions": 5}, "dimensions is 5, but the model has 4"),
        ({"input": "a", "dimensions": 0}, "dimensions must be at least 1"),
        ({"input": "a", "dimensions": 1 << 70}, "dimensions is far more, but the model has 4"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format must be one of float, base64"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "must be at least 1, or -1"),
        ({"input": ["a"] * 2049}, "input may hold at most 2048 inputs"),
        ({"input": ["a"] * 33}, "32 are all that can be taken: send fewer inputs"),
        ({"input": "x" * 30_000}, "maximum context length is 32 tokens"),
        ({"input": "\ud800"}, "surrogate"),
    ],
)
def test_mistakes_are_named(both: ScriptedSite, fields: dict[str, Any], says: str) -> None:
    answer = both.ask("POST", "/v1/embeddings", fields)
    assert answer.status in (400, 403) and says in answer.json["error"]["message"]


def test_the_models_are_not_taken_for_each_other(both: ScriptedSite) -> None:
    for answer, says in (
        (embed(both, "a", model="tiny"), "the model 'tiny' generates text and does not embed it: ask 'vectors'"),
        (both.complete(model="vectors"), "the model 'vectors' embeds text and does not generate it: ask 'tiny'"),
        (embed(both, "a", model="ada"), "there is no model 'ada': this server has 'tiny' and 'vectors'"),
        (both.complete(model="ada"), "there is no model 'ada': this server has 'tiny' and 'vectors'"),
        (both.ask("GET", "/v1/models/ada"), "there is no model 'ada': this server has 'tiny' and 'vectors'"),
    ):
        assert answer.status == 404 and answer.json["error"]["code"] == "model_not_found"
        assert answer.json["error"]["message"] == says
    listed = both.ask("GET", "/v1/models").json
    validate(listed, MODELS)
    shown = {one["id"]: (one["max_model_len"], one.get("embedding_size")) for one in listed["data"]}
    assert shown == {"tiny": (512, None), "vectors": (32, 4)}
    assert both.ask("GET", "/v1/models/vectors").json["embedding_size"] == 4


def test_a_request_never_goes_to_the_other_models_workers(alone: ScriptedSite) -> None:
    """Each model is without workers while only the other one has some."""
    generating = alone.worker()
    assert embed(alone, "a").status == 503 and alone.complete().status == 200
    embedding = embedder(alone)
    assert embed(alone, "a").status == 200
    generating.fall_silent(alone.proxy.registry)
    eventually(lambda: not alone.proxy.registry.generating.workers, "the worker's removal")
    assert alone.complete().status == 503 and embed(alone, "a").status == 200
    assert embedding.submits.empty() and generating.embeds.empty()


def test_workers_of_another_model_are_refused(alone: ScriptedSite) -> None:
    embedder(alone)
    for name, hello, says in (
        ("embed:1", {"model_fingerprint": "w"}, "embed:1 has model vectors (w) but embed:0 has vectors (v)"),
        ("embed:2", {"model": "other"}, "the proxy was started with --embedding-model for vectors"),
    ):
        worker = ScriptedWorker(alone.endpoint, name, alone.tokenizer, role="embed", **(HELLO | hello))
        alone.workers.append(worker.start(wait=False))
        eventually(lambda worker=worker: worker.refused, "the refusal")  # type: ignore[misc]
        assert says in (worker.refused or "")


def test_without_an_embedding_model_the_way_out_is_told(pair: ScriptedSite) -> None:
    answer = embed(pair, "a")
    assert answer.status == 404 and "start the server with --embed" in answer.json["error"]["message"]
    worker = ScriptedWorker(pair.endpoint, "embed:0", pair.tokenizer, role="embed", **HELLO)
    worker.start(wait=False)
    eventually(lambda: worker.refused, "the refusal")
    worker.die()
    assert "the proxy was started without --embedding-model" in (worker.refused or "")


def say_nothing(worker: ScriptedWorker, message: Embed) -> Iterator[Message]:
    return iter(())


def test_a_text_goes_on_to_another_worker(alone: ScriptedSite) -> None:
    """One of the two dies with a part of the texts: the answer and the counts are those of an undisturbed run."""
    dying = embedder(alone, embedder=say_nothing)
    given = [[number, 7] for number in range(12)]
    embedder(alone, "embed:1")
    eventually(lambda: len(alone.proxy.registry.of("vectors").loads) == 2, "both workers")

    def die() -> None:
        dying.embeds.get(timeout=DEADLINE)
        dying.fall_silent(alone.proxy.registry)

    ending = threading.Thread(target=die)
    ending.start()
    answer = embed(alone, given)
    ending.join()
    assert vectors(answer) == [[number, 7, 0, 0] for number in range(12)]
    assert answer.json["usage"]["prompt_tokens"] == 24
    sums = alone.ask("GET", "/admin/ledger").json
    assert (sums["prompt_tokens"], sums["requests"], sums["imbalance"], sums["open"]) == (24, 12, 0, 0)
    assert sum(alone.value("pontil_failovers_total", cause=cause) for cause in ("silent", "died")) > 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"vector": b"1234"}, {"vector": b"\0\0\xc0\x7f" * 4}, {"vector": b"\0\0\x80\x7f" * 4}, {"prompt_tokens": 9},
        {"computed_tokens": 0},
    ],
)  # fmt: skip
def test_a_vector_that_cannot_be_right_is_not_shown(alone: ScriptedSite, wrong: dict[str, Any]) -> None:
    lying = embedder(alone, embedder=partial(vector_of, **wrong))
    embedder(alone, "embed:1")
    assert vectors(embed(alone, [5, 6])) == [[5, 6, 0, 0]]
    assert alone.value("pontil_failovers_total", cause="broken") == 1 and not lying.embeds.empty()


def test_a_text_that_no_worker_can_embed_ends(alone: ScriptedSite) -> None:
    def failing(worker: ScriptedWorker, message: Embed) -> Iterator[Message]:
        address = worker.incarnation, worker.proxy, message.request_id, message.attempt
        yield Failed(*address, "wait", 503)

    embedder(alone, embedder=failing)
    answer = embed(alone, [5, 6])
    assert answer.status == 503 and "attempt 3 of 3" in answer.json["error"]["message"]


def test_of_texts_of_which_one_fails_none_is_billed(tmp_path: Path, tokenizer: Tokenizer) -> None:
    def choosy(worker: ScriptedWorker, message: Embed) -> Iterator[Message]:
        wrong = Failed(worker.incarnation, worker.proxy, message.request_id, message.attempt, "wait", 503)
        return iter([wrong]) if message.prompt == [9] else vector_of(worker, message)

    path = tmp_path / "usage.db"
    with site(tmp_path, tokenizer, usage_log=str(path), **SERVED) as made:
        embedder(made, embedder=choosy)
        assert embed(made, [[1, 2], [3], [9]]).status == 503
        live = made.ask("GET", "/admin/ledger").json
        assert (live["requests"], live["prompt_tokens"], live["imbalance"]) == (3, 0, 0)
    with closing(open_to_read(path)) as database:
        assert [(one.requests, one.prompt_tokens) for one in usage_sums(database)] == [(3, 0)]
        assert all(finding.equal for finding in audit(database)), audit(database)


def test_the_books_and_the_metrics_have_it(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "usage.db"
    with site(tmp_path, tokenizer, usage_log=str(path), **SERVED) as made:
        made.worker()
        embedder(made)
        vectors(embed(made, [[1, 2], [3]]))
        assert made.complete(max_tokens=2).status == 200
        live = made.ask("GET", "/admin/ledger").json
        assert made.value("pontil_embeddings_total") == 2 and made.value("pontil_embedding_tokens_total") == 3
        assert made.value("pontil_prompt_tokens_total") == live["prompt_tokens"] - 3
    with closing(open_to_read(path)) as database:
        rows = {one.model: (one.requests, one.prompt_tokens, one.completion_tokens) for one in usage_sums(database)}
        assert all(finding.equal for finding in audit(database)), audit(database)
    assert rows["vectors"] == (2, 3, 0) and live["prompt_tokens"] == 3 + len(tokenizer.encode("hi", True))


def test_the_page_has_every_parameter() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "embeddings.md").read_text().splitlines()
    begin = page.index(embeddings_table()[0])
    shown = page[begin : begin + len(embeddings_table())]
    assert shown == embeddings_table(), "python tests/support/checks/api_table.py prints the table"
