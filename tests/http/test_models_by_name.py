# SPDX-License-Identifier: Apache-2.0
"""Several models behind one proxy: each request goes to the workers of the model that it names, and is read by its
tokenizer."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from saying_sites import tokenizer_with
from scripted_site import MODEL, ScriptedSite, site
from scripted_worker import eventually
from stream_front import Reader, told

from pontil.runtime.config.proxy_config import FurtherModel
from pontil.runtime.proxy.admission.model_waking import MOST_WAITING
from pontil.runtime.receipts.statement import Receipt
from pontil.runtime.tokenizer.tokenizer import Tokenizer

OTHER, TEMPLATE = "other/model", "{% for m in messages %}[{{ m.content }}]{% endfor %}"
TURNS = [{"role": "user", "content": "hi"}]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hi", "max_tokens": 3},
    "/v1/chat/completions": {"messages": TURNS, "max_tokens": 3},
    "/v1/responses": {"input": "hi", "max_output_tokens": 3},
    "/v1/messages": {"messages": TURNS, "max_tokens": 3},
    "/api/chat": {"messages": TURNS, "stream": False, "options": {"num_predict": 3}},
    "/invocations": {"messages": TURNS, "max_tokens": 3},
    "/v1/chat/completions/render": {"messages": TURNS},
}
SAID = {MODEL: "Hello 😀 world", OTHER: "Ciao a tutti, e buona sera"}


FURTHER = (
    FurtherModel(
        name=OTHER,
        model="/other",
        tool_call_parser="auto",
        reasoning_parser="auto",
        hide_end_token=False,
        adapter=("sql=/sql",),
    ),
)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> dict[str, Tokenizer]:
    return {MODEL: tokenizer, OTHER: tokenizer_with(tmp_path_factory.mktemp("other"), TEMPLATE)}


@pytest.fixture
def both(tmp_path: Path, tokenizers: dict[str, Tokenizer]) -> Iterator[ScriptedSite]:
    with site(
        tmp_path,
        tokenizers[MODEL],
        {OTHER: tokenizers[OTHER]},
        further_models=FURTHER,
        receipt_key="17" * 32,
        resume_folder=str(tmp_path / "streams"),
    ) as made:
        yield made


def start(made: ScriptedSite, tokenizers: dict[str, Tokenizer], name: str, **options: Any) -> Any:
    """Start the worker of a model, whose ids are those of its tokenizer."""
    made.tokenizer = tokenizers[name]
    about = {"model": name, "model_fingerprint": name, "kernels": "amx", "role": "mixed", "text": SAID[name]}
    return made.worker(f"{name[:5]}:0", **about | options)


def test_every_endpoint_asks_the_model_of_its_name(both: ScriptedSite, tokenizers: dict[str, Tokenizer]) -> None:
    workers = {name: start(both, tokenizers, name) for name in (MODEL, OTHER)}
    for path, body in ASKED.items():
        for name, worker in workers.items():
            answer = both.ask("POST", path, {"model": name} | body)
            assert (answer.status, answer.json["model"]) == (200, name), (path, answer.body)
            ids = answer.json["token_ids"] if path.endswith("render") else worker.submits.get(timeout=30).prompt
            prompt = tokenizers[name].decode(ids, skip_special_tokens=False)
            assert (prompt == "[hi]") == (name == OTHER and path != "/v1/completions"), (path, name, prompt)
    assert all(worker.submits.empty() for worker in workers.values())
    assert both.ask("POST", "/api/chat", {"model": f"{OTHER}:latest"} | ASKED["/api/chat"]).json["model"] == OTHER
    counted = {name: both.ask("POST", "/tokenize", {"model": name, "messages": TURNS}).json for name in workers}
    assert counted[OTHER]["tokens"] == tokenizers[OTHER].encode("[hi]", False) != counted[MODEL]["tokens"]


def test_models_are_listed_and_others_refused(both: ScriptedSite, tokenizers: dict[str, Tokenizer]) -> None:
    start(both, tokenizers, MODEL)
    start(both, tokenizers, OTHER, max_model_len=256, adapters={"sql": "5a" * 32})
    listed = {one["id"]: one for one in both.ask("GET", "/v1/models").json["data"]}
    assert {name: (one["parent"], one["max_model_len"]) for name, one in listed.items()} == {
        MODEL: (None, 512),
        OTHER: (None, 256),
        "sql": (OTHER, 256),
    }
    wrong = both.complete(model="another")
    assert wrong.status == 404 and all(repr(name) in wrong.json["error"]["message"] for name in (MODEL, OTHER))
    assert both.complete(model="sql").json["model"] == "sql"
    long = both.complete([1] * 300, model=OTHER, max_tokens=1).json["error"]
    assert long["code"] == "context_length_exceeded" and both.complete([1] * 300, max_tokens=1).status == 200
    beyond = tokenizers[OTHER].vocab_size
    assert beyond < tokenizers[MODEL].vocab_size or both.complete([beyond], model=OTHER).status == 400


def test_a_dead_model_touches_no_other(both: ScriptedSite, tokenizers: dict[str, Tokenizer]) -> None:
    start(both, tokenizers, MODEL)
    start(both, tokenizers, OTHER).fall_silent(both.proxy.registry)
    assert [both.complete(model=name, max_tokens=2).status for name in (MODEL, OTHER)] == [200, 503]
    assert both.proxy.ready and [row["id"] for row in both.ask("GET", "/v1/models").json["data"]] == [
        MODEL,
        OTHER,
        "sql",
    ]


def test_a_stream_of_any_model_is_continued_and_attested(both: ScriptedSite, tokenizers: dict[str, Tokenizer]) -> None:
    start(both, tokenizers, MODEL)
    start(both, tokenizers, OTHER)
    body = {"model": OTHER, "prompt": "tell me", "max_tokens": 100, "stream": True}
    first = Reader(both, "/v1/completions", body).read(1)
    first.leave()
    rest = Reader(both, "/v1/completions", {}, first.last).all()
    events = [event for event in first.events + rest.events if event != "[DONE]"]
    assert told(first, rest) == SAID[OTHER] and {event["model"] for event in events} == {OTHER}
    answer = both.ask("POST", "/v1/completions", body | {"stream": False}, {"pontil-receipt": "1"}).json
    statement = Receipt.from_json(answer["receipt"]).statement
    assert (statement["model"], statement["tokenizer"]) == (OTHER, tokenizers[OTHER].digest)
    assert statement["model_fingerprint"] == OTHER


def test_a_request_for_a_sleeping_model_waits_until_it_wakes(tmp_path: Path, tokenizers: dict[str, Tokenizer]) -> None:
    told: list[dict[str, list[int]]] = []
    with site(
        tmp_path,
        tokenizers[MODEL],
        {OTHER: tokenizers[OTHER]},
        further_models=FURTHER,
        model_memory=1 << 30,
        first_byte_timeout=0.2,
    ) as made:
        waking = made.proxy.waking
        waking.tell = told.append
        start(made, tokenizers, MODEL)

        def table(state: str, **about: Any) -> None:
            rows = [
                {"name": "b:0", "role": "mixed", "pid": None, "state": state, "device": "cpu", "model": OTHER} | about
            ]
            made.loop.call_soon_threadsafe(made.proxy.take_table, rows)

        table("ready", start_seconds=7.0)
        eventually(lambda: waking.starts.get(OTHER), "the time of a start")
        table("asleep")
        eventually(lambda: waking.sleeps(OTHER), "sleep")
        listed = {one["id"]: one["state"] for one in made.ask("GET", "/v1/models").json["data"]}
        assert listed == {MODEL: "awake", OTHER: "asleep", "sql": "asleep"} and made.proxy.ready
        late = made.complete(model=OTHER, max_tokens=2)
        assert (late.status, late.headers["retry-after"]) == (503, "7") and "sleeps" in late.json["error"]["message"]
        assert {"": [0, 0, 0], OTHER: [0, 1, 1]} in told
        waking.patience = 60.0
        with ThreadPoolExecutor(1) as other:
            waiting = other.submit(made.complete, model=OTHER, max_tokens=2)
            eventually(lambda: waking.doors[OTHER].total, "a request at the door")
            assert made.complete(max_tokens=2).status == 200 and not waking.is_proved(OTHER)
            start(made, tokenizers, OTHER)
            assert waiting.result(60).json["model"] == OTHER
        assert [route.name for route in made.proxy.self_test.routes()] == ["tiny:0"]
        eventually(lambda: told[-1] == {"": [1, 0, 0], OTHER: [1, 0, 0]}, "the last use")
        waking.doors[OTHER].hold("-", MOST_WAITING)
        made.workers[-1].fall_silent(made.proxy.registry)
        assert "256 requests wait for it" in made.complete(model=OTHER).json["error"]["message"]
        table("given_up")
        eventually(lambda: not waking.may_wake(OTHER), "the end")
        gone = made.complete(model=OTHER)
        assert gone.status == 503 and "no worker is ready yet" in gone.json["error"]["message"]
