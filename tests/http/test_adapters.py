# SPDX-License-Identifier: Apache-2.0
"""Adapters as clients ask for them: by the name of a model, at every endpoint that generates."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scripted_site import MODEL, HttpAnswer, ScriptedSite, site
from scripted_worker import ScriptedWorker, eventually
from tiny_adapters import write_adapter
from tiny_llama import write_tiny_llama

from pontil.gpu_ops.parameters.adapters import LowRank
from pontil.http.vllm import adapters as routes
from pontil.runtime.loaders.config import read_config
from pontil.runtime.loaders.facts.adapter_facts import adaptable_layers, stored_digest
from pontil.runtime.proxy.metrics import class_metrics
from pontil.runtime.receipts.statement import Receipt
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.compatibility import objection
from pontil.runtime.wire.messages import AdapterState, AdapterTable

DIGESTS = {"sql": "5a" * 32, "team/law": "1c" * 32}
JSON = {"content-type": "application/json"}
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


def test_metrics_count_each_adapter_and_a_bounded_number(
    adapting: ScriptedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted(name: str) -> tuple[float, float]:
        series = ("pontil_adapter_requests_total", "pontil_adapter_tokens_total")
        requests, tokens = (adapting.value(one, adapter=name) for one in series)
        return requests, tokens

    before = {name: counted(name) for name in ("sql", "team/law", class_metrics.OTHERS)}
    body = {"model": "sql"} | ASKED["/v1/completions"]
    usage = adapting.ask("POST", "/v1/completions", body).json["usage"]
    adapting.complete(model=MODEL)
    assert counted("sql") == (before["sql"][0] + 1, before["sql"][1] + usage["total_tokens"])
    monkeypatch.setattr(class_metrics, "MOST_ADAPTERS", 1)
    monkeypatch.setattr(adapting.proxy.metrics.classes.adapters, "names", {"sql"})
    adapting.ask("POST", "/v1/completions", body | {"model": "team/law"})
    assert counted("team/law") == before["team/law"]
    assert counted(class_metrics.OTHERS)[0] == before[class_metrics.OTHERS][0] + 1


def test_models_that_are_adapters_have_a_parent(adapting: ScriptedSite) -> None:
    listed = {one["id"]: one for one in adapting.ask("GET", "/v1/models").json["data"]}
    assert {name: one["parent"] for name, one in listed.items()} == {MODEL: None, **dict.fromkeys(DIGESTS, MODEL)}
    assert adapting.ask("GET", "/v1/models/sql").json == listed["sql"]
    assert listed["sql"] | {"id": MODEL, "root": MODEL, "parent": None} == listed[MODEL]
    wrong = adapting.complete(model="sqk")
    assert wrong.status == 404 and "'sql'" in wrong.json["error"]["message"]


def test_ollamas_list_has_adapters(adapting: ScriptedSite) -> None:
    model, *adapters = adapting.ask("GET", "/api/tags").json["models"]
    assert [one["name"] for one in adapters] == [f"{name}:latest" for name in DIGESTS]
    assert {one["details"]["parent_model"] for one in adapters} == {model["name"]}


def test_an_adapter_that_tokens_activate_begins_where_they_stand(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with site(tmp_path, tokenizer) as made:
        worker = made.worker("mixed:0", adapters=DIGESTS, invocations={"sql": [7, 8]})
        prompts = [[5, 7, 8, 9], [7, 8, 7, 8, 8], [8, 7, 9], [7, 8]]
        assert made.complete(prompts, model="sql", max_tokens=1).status == 200
        sent = sorted((worker.submits.get(timeout=30) for _ in prompts), key=lambda one: prompts.index(one.prompt))
        own = DIGESTS["sql"]
        assert [(one.adapter, one.adapter_start) for one in sent] == [(own, 1), (own, 2), ("", 0), (own, 0)]
        assert made.complete([5, 7, 8], model="team/law").status == 200
        assert worker.submits.get(timeout=30).adapter_start == 0


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


class AdapterWorker:
    """A scripted worker that tells its proxy what it was told of adapters, and what became of that."""

    def __init__(self, worker: ScriptedWorker) -> None:
        self.worker, self.refused = worker, dict[str, str]()

    def answer(self, message: AdapterTable) -> None:
        loaded = {name: digest for name, digest in message.digests.items() if digest and name not in self.refused}
        failed = {name: why for name, why in self.refused.items() if message.digests.get(name)}
        about = message.changes, message.digests, message.directories, loaded, failed
        self.worker.say(AdapterState(self.worker.incarnation, message.sender, *about, retracted=message.retracted))


def load(made: ScriptedSite, name: str, path: object, **more: Any) -> HttpAnswer:
    return made.ask("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)} | more, JSON)


def unload(made: ScriptedSite, name: str) -> HttpAnswer:
    return made.ask("POST", "/v1/unload_lora_adapter", {"lora_name": name}, JSON)


def listed(made: ScriptedSite) -> list[str]:
    return [one["id"] for one in made.ask("GET", "/v1/models").json["data"]][1:]


@pytest.fixture
def loading(tmp_path: Path, tokenizer: Tokenizer) -> Iterator[tuple[ScriptedSite, list[AdapterWorker]]]:
    write_tiny_llama(tmp_path / "model", dtype="float32")
    sizes = adaptable_layers(read_config(tmp_path / "model"))
    for seed, name in enumerate(("one", "two"), 1):
        layers = {layer: LowRank(torch.full((4, one.inputs), 0.1 * seed), torch.ones(one.outputs, 4))
                  for layer, one in sizes.items()}  # fmt: skip
        write_adapter(tmp_path / "adapters" / name, layers)
    write_adapter(
        tmp_path / "adapters" / "wrong",
        {"model.layers.0.self_attn.q_proj": LowRank(torch.ones(4, 3), torch.ones(3, 4))},
    )
    write_adapter(tmp_path / "elsewhere", {})
    folder = tmp_path / "site"
    folder.mkdir()
    (tmp_path / "adapters" / "out").symlink_to(tmp_path / "elsewhere")
    with site(folder, tokenizer, adapter_directory=(str(tmp_path / "adapters"),)) as made:
        made.proxy.config = replace(made.proxy.config, model=str(tmp_path / "model"))
        workers = [AdapterWorker(worker) for worker in made.pair(adapters=DIGESTS, loads_adapters=True)]
        for one in workers:
            one.worker.on_adapters = one.answer
        yield made, workers


Loading = tuple[ScriptedSite, list[AdapterWorker]]


def test_an_adapter_is_loaded_and_unloaded_in_all_workers(loading: Loading, tmp_path: Path) -> None:
    made, workers = loading
    one, two = (stored_digest(tmp_path / "adapters" / name) for name in ("one", "two"))
    assert load(made, "new", tmp_path / "adapters" / "one").body == b"Success: LoRA adapter 'new' added successfully."
    assert listed(made) == [*DIGESTS, "new"]
    assert made.complete(model="new").json["model"] == "new"
    sent = workers[1].worker.submits.get(timeout=30)
    # A worker that takes it over may begin after the name is free.
    assert (sent.adapter, sent.adapter_directory) == (one, str((tmp_path / "adapters" / "one").resolve()))
    assert load(made, "new", tmp_path / "adapters" / "two").json["error"]["code"] == "adapter_exists"
    # Another one in its place is asked for by its own digest, so that nothing of the old one is found.
    assert load(made, "new", tmp_path / "adapters" / "two", load_inplace=True).status == 200
    assert made.complete(model="new").status == 200 and workers[1].worker.submits.get(timeout=30).adapter == two
    for name in ("new", "sql"):
        assert unload(made, name).body == f"Success: LoRA adapter '{name}' removed successfully.".encode()
        assert made.complete(model=name).status == unload(made, name).status == 404
    assert listed(made) == ["team/law"]
    assert load(made, "sql", tmp_path / "adapters" / "one").status == 200 and listed(made) == ["team/law", "sql"]


def test_an_adapter_that_is_loaded_tells_which_tokens_activate_it(loading: Loading, tmp_path: Path) -> None:
    made, workers = loading
    told, own = list[AdapterTable](), workers[1]

    def note(message: AdapterTable) -> None:
        told.append(message)
        own.answer(message)

    own.worker.on_adapters = note
    config = tmp_path / "adapters" / "one" / "adapter_config.json"
    plain = json.loads(config.read_text())
    config.write_text(json.dumps(plain | {"alora_invocation_tokens": [7, 8]}))
    assert load(made, "late", config.parent).status == 200
    assert told[-1].invocations == {"late": [7, 8]}
    for prompt, start in (([7, 8, 9], 0), ([5, 7, 8], 1)):
        assert made.complete(prompt, model="late").status == 200
        sent = own.worker.submits.get(timeout=30)
        assert (sent.adapter, sent.adapter_start) == (stored_digest(config.parent), start)
    for wrong, says in (([1 << 20], "is for another base"), ([], "has 0 tokens")):
        config.write_text(json.dumps(plain | {"alora_invocation_tokens": wrong}))
        answer = load(made, "wrong", config.parent)
        assert answer.status == 400 and says in answer.json["error"]["message"]


def test_a_worker_that_comes_is_told_and_a_proxy_that_begins_is_told_by_workers(
    loading: Loading, tmp_path: Path
) -> None:
    made, workers = loading
    assert load(made, "new", tmp_path / "adapters" / "one").status == 200
    late = AdapterWorker(
        ScriptedWorker(
            made.endpoint, "decode:1", made.tokenizer, [5], role="decode", adapters=DIGESTS, loads_adapters=True
        )
    )
    made.workers.append(late.worker)
    told: list[AdapterTable] = []
    late.worker.on_adapters = told.append
    late.worker.start()
    eventually(lambda: told, "the table")
    assert told[0].digests == {"new": stored_digest(tmp_path / "adapters" / "one")}
    # It is served on while the new one loads it: that one knows it before its first request.
    assert listed(made) == [*DIGESTS, "new"]
    # A worker that has told nothing yet may know it.
    made.proxy.adapters.book.changes.clear()
    assert made.complete(model="new").status == 503
    late.answer(told[0])
    workers[0].answer(told[0])
    eventually(lambda: "new" in made.proxy.adapters.book.changes, "what workers know")
    for one in workers:
        one.answer(told[0])
    eventually(lambda: made.complete(model="new").status == 200, "the adapter")


def test_what_cannot_be_loaded_is_refused_and_nothing_is_lost(
    loading: Loading, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, workers = loading
    folder = tmp_path / "adapters"
    for path, says in (
        (folder / "none", "no adapter of PEFT"),
        (folder / "wrong", "another base"),
        (folder / "out", "not in a directory of --adapter-directory"),
        (tmp_path / "elsewhere", "not in a directory of --adapter-directory"),
        (f"{folder}/../elsewhere", "not in a directory of --adapter-directory"),
        ("/etc/passwd", "not in a directory of --adapter-directory"),
        ("\0", "not in a directory of --adapter-directory"),
    ):
        answer = load(made, "new", path)
        assert answer.status == 400 and says in answer.json["error"]["message"], answer.body
    for body, status in (({"lora_name": "x y", "lora_path": "/x"}, 400), ({"lora_name": MODEL, "lora_path": "/x"}, 400),
                         ({"lora_name": "x"}, 400), ({"lora_name": 7, "lora_path": "/x"}, 400)):  # fmt: skip
        assert made.ask("POST", "/v1/load_lora_adapter", body, JSON).status == status, body
    workers[1].refused["new"] = "its disk is gone"
    answer = load(made, "new", folder / "one")
    assert answer.status == 400 and "decode:0 cannot load it: its disk is gone" in answer.json["error"]["message"]
    assert listed(made) == list(DIGESTS) and made.complete(model="new").status == 404
    # One that says nothing: the answer says so, and the adapter is there once it has loaded it.
    monkeypatch.setattr(routes, "LOADED_WITHIN", 0.1)
    silent, workers[0].worker.on_adapters = workers[0].worker.on_adapters, lambda told: None
    workers[1].refused.clear()
    assert load(made, "slow", folder / "one").status == 503
    assert made.complete(model="slow").status == 503 and listed(made) == list(DIGESTS)
    workers[0].worker.on_adapters = silent
    made.loop.call_soon_threadsafe(made.proxy.adapters.tell)
    eventually(lambda: listed(made) == [*DIGESTS, "slow"], "the slow one")


def test_a_change_that_another_one_overtook_is_not_answered_as_made(loading: Loading, tmp_path: Path) -> None:
    made, workers = loading
    other = "ff" * 32

    def overtaken(one: AdapterWorker) -> Callable[[AdapterTable], None]:
        """Answer as a worker that was told, by another proxy, of a change with the same number."""
        return lambda told: one.answer(
            replace(told, digests=told.digests | {"new": other}, directories=told.directories | {"new": "/other"})
        )

    for one in workers:
        one.worker.on_adapters = overtaken(one)
    asks: tuple[Callable[[], HttpAnswer], ...] = (
        lambda: load(made, "new", tmp_path / "adapters" / "one"),
        lambda: unload(made, "new"),
    )
    for ask in asks:
        answer = ask()
        assert answer.status == 503 and "another change of new" in answer.json["error"]["message"], answer.body
        eventually(lambda: listed(made) == [*DIGESTS, "new"], "the other one")
        assert made.proxy.adapters.book.digest_of("new", None) == other
    for one in workers:
        one.worker.on_adapters = one.answer
    assert unload(made, "new").status == 200 and listed(made) == list(DIGESTS)


def test_adapters_are_loaded_only_where_the_launch_allows_it(
    adapting: ScriptedSite, loading: Loading, tmp_path: Path
) -> None:
    assert load(adapting, "new", tmp_path).status == 403
    made, _ = loading
    made.worker("mixed:9", adapters=DIGESTS)
    answer = load(made, "new", tmp_path / "adapters" / "one")
    assert answer.status == 409 and "mixed:9 loads no adapters while it runs" in answer.json["error"]["message"]


def test_requests_go_where_their_adapter_is_in_memory(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with site(tmp_path, tokenizer) as made:
        workers = [made.worker(f"mixed:{number}", adapters=DIGESTS) for number in range(3)]

        def tell(*memory: list[str]) -> None:
            for worker, held in zip(workers, memory, strict=True):
                worker.say(AdapterState(worker.incarnation, made.proxy.incarnation, memory=held))
            wanted = {worker.incarnation: held for worker, held in zip(workers, memory, strict=True)}
            adapters = made.proxy.adapters
            eventually(lambda: {name: one.memory for name, one in adapters.states.items()} == wanted, "the states")

        def asked(name: str) -> list[int]:
            for _ in range(6):
                assert made.complete(model=name).status == 200
            return [worker.submits.qsize() for worker in workers]

        tell([], [DIGESTS["sql"]], [])
        assert asked("sql") == [0, 6, 0]
        # An adapter that no worker has is no reason for any of them, and the model as it is has none.
        after = asked("team/law")
        assert sum(after) == 12 and after[1] < 12
