# SPDX-License-Identifier: Apache-2.0
"""Adapters as clients ask for them: by the name of a model, at every endpoint that generates."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from scripted_site import MODEL, ScriptedSite, site

from pontil.runtime.receipts.statement import Receipt
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.compatibility import objection

DIGESTS = {"sql": "5a" * 32, "team/law": "1c" * 32}
TURNS = [{"role": "user", "content": "hi"}]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hi", "max_tokens": 3},
    "/v1/chat/completions": {"messages": TURNS, "max_tokens": 3},
    "/v1/responses": {"input": "hi", "max_output_tokens": 3},
    "/v1/messages": {"messages": TURNS, "max_tokens": 3},
    "/api/chat": {"messages": TURNS, "stream": False, "options": {"num_predict": 3}},
    "/api/generate": {"prompt": "hi", "stream": False, "options": {"num_predict": 3}},
}


@pytest.fixture(scope="module")
def adapting(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    with site(tmp_path_factory.mktemp("site"), tokenizer, receipt_key="17" * 32) as made:
        made.pair(adapters=DIGESTS, kernels="amx")
        yield made


@pytest.mark.parametrize("path", ASKED)
def test_every_endpoint_takes_an_adapter_by_its_name(adapting: ScriptedSite, path: str) -> None:
    decode = adapting.workers[1]
    for name, digest in {**DIGESTS, MODEL: ""}.items():
        answer = adapting.ask("POST", path, {"model": name} | ASKED[path])
        assert (answer.status, answer.json["model"]) == (200, name), answer.body
        assert decode.submits.get(timeout=30).adapter == digest


def test_models_that_are_adapters_have_a_parent(adapting: ScriptedSite) -> None:
    listed = {one["id"]: one for one in adapting.ask("GET", "/v1/models").json["data"]}
    assert {name: one["parent"] for name, one in listed.items()} == {MODEL: None, **dict.fromkeys(DIGESTS, MODEL)}
    assert adapting.ask("GET", "/v1/models/sql").json == listed["sql"]
    assert listed["sql"] | {"id": MODEL, "root": MODEL, "parent": None} == listed[MODEL]
    wrong = adapting.complete(model="sqk")
    assert wrong.status == 404 and "'sql'" in wrong.json["error"]["message"]


def test_a_receipt_states_the_adapter(adapting: ScriptedSite) -> None:
    body = {"model": "sql"} | ASKED["/v1/completions"]
    answer = adapting.ask("POST", "/v1/completions", body, {"pontil-receipt": "1"}).json
    receipt = Receipt.from_json(answer["receipt"])
    assert (receipt.statement["model"], receipt.adapter) == ("sql", DIGESTS["sql"])
    plain = adapting.ask("POST", "/v1/completions", body | {"model": MODEL}, {"pontil-receipt": "1"}).json
    assert "adapter" not in plain["receipt"]["statement"]


def test_a_worker_with_other_adapters_is_refused(adapting: ScriptedSite) -> None:
    hello = adapting.proxy.registry.generating.any_hello
    assert hello is not None and objection(hello, hello) is None
    for adapters in ({}, DIGESTS | {"sql": "00" * 32}):
        says = objection(replace(hello, adapters=adapters), hello)
        assert says is not None and says.endswith("start it with the same --adapter")


def test_an_adapter_is_awaited_with_the_first_worker(tmp_path: Any, tokenizer: Tokenizer) -> None:
    with site(tmp_path, tokenizer, adapter=("sql=/sql",)) as made:
        assert [made.complete(model=name).status for name in ("sql", "law")] == [503, 404]
        assert made.ask("GET", "/v1/models/sql").json["parent"] == MODEL
