# SPDX-License-Identifier: Apache-2.0
"""Leases of a launch with several models: each is its model's, and all are within the same budgets."""

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from leasing_worker import LeasingWorker, leasing, leasing_worker
from scripted_site import MODEL, HttpAnswer, ScriptedSite, site
from scripted_worker import ScriptedWorker, eventually

from pontil.runtime.accounting.audit import audit
from pontil.runtime.accounting.usage_file import open_to_read
from pontil.runtime.config.proxy_config import FurtherModel
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.lease_messages import SLEEPS
from pontil.runtime.wire.messages import Message, PrefixDelta, Submit

IDS = [40 + number % 50 for number in range(40)]
PATH, OTHER = "/v1/prefixes", "other/model"
FURTHER = FurtherModel(
    name=OTHER, model="/other", hide_end_token=False, adapter=(), tool_call_parser="auto", reasoning_parser="auto"
)


@pytest.fixture
def made(tmp_path: Path, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    about = {"further_models": (FURTHER,), "failover_timeout": 60.0, "lease_client_memory": 500}
    with site(tmp_path, tokenizer, {OTHER: tokenizer}, usage_log=str(tmp_path / "usage.db"), **about) as served:
        yield served


def of_other(served: ScriptedSite, name: str) -> LeasingWorker:
    return leasing_worker(served, name, 1000, model=OTHER, model_fingerprint=OTHER)


def post(served: ScriptedSite, model: str = OTHER, **fields: Any) -> HttpAnswer:
    return served.ask("POST", PATH, {"model": model, "prompt": IDS, "ttl": 600} | fields)


def keep(served: ScriptedSite, model: str = OTHER) -> str:
    answer = post(served, model)
    assert (answer.status, answer.json["model"]) == (200, model), answer.body
    return str(answer.json["id"])


def shown(served: ScriptedSite, name: str) -> dict[str, Any]:
    found: dict[str, Any] = served.ask("GET", f"{PATH}/{name}").json
    return found


def test_each_model_keeps_its_own_within_one_budget(made: ScriptedSite, tmp_path: Path) -> None:
    """Both are on equal ids, whose keys are equal, and each is billed to its model."""
    first, other = leasing_worker(made), of_other(made, "mixed:1")
    names = {model: keep(made, model) for model in (MODEL, OTHER)}
    assert (list(first.leases), list(other.leases)) == ([names[MODEL]], [names[OTHER]])
    listed = made.ask("GET", PATH).json["data"]
    assert [(one["id"], one["model"]) for one in listed] == [(names[MODEL], MODEL), (names[OTHER], OTHER)]
    full = post(made, prompt=[5, *IDS])
    assert full.status == 429 and "this key's leases hold 400 of the 500" in full.json["error"]["message"]
    longer = made.ask("PATCH", f"{PATH}/{names[OTHER]}", {"ttl": 900}).json
    assert longer["ttl"] >= 900 and longer["model"] == OTHER
    eventually(lambda: other.leases[names[OTHER]].state.seconds == longer["ttl"], "the extension")
    for model, name in names.items():
        over = made.ask("DELETE", f"{PATH}/{name}").json
        assert (over["state"], over["model"]) == ("released", model)
    eventually(lambda: not first.leases and not other.leases, "the releases")
    with closing(open_to_read(tmp_path / "usage.db")) as database:

        def rows() -> list[tuple[Any, ...]]:
            return database.execute("SELECT model, worker, outcome FROM leases ORDER BY worker").fetchall()

        billed = [(MODEL, first.name, "released"), (OTHER, other.name, "released")]
        eventually(lambda: rows() == billed, "the rows")
        live = made.ask("GET", "/admin/ledger").json
        eventually(lambda: all(one.equal for one in audit(database, live)), "equal books")


def test_a_model_without_room_is_helped_by_no_other(made: ScriptedSite) -> None:
    first = leasing_worker(made)
    other = leasing_worker(made, "mixed:1", 100, model=OTHER, model_fingerprint=OTHER)
    none = post(made)
    assert none.status == 409 and "at most 100 in one worker" in none.json["error"]["message"]
    other.fall_silent(made.proxy.registry)
    eventually(lambda: other.incarnation not in made.proxy.registry.workers, "the death")
    assert post(made).status in (429, 503) and not first.leases and first.submits.empty()


def test_an_answer_of_a_further_model_leases_its_prompt(made: ScriptedSite) -> None:
    """The second turn extends the lease of the first, and makes no second one."""
    leasing_worker(made, budget=10_000)
    other = leasing_worker(made, "mixed:1", 10_000, model=OTHER, model_fingerprint=OTHER)
    text = {"type": "text", "text": "a rule " * 8, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    body = {"model": OTHER, "max_tokens": 20, "messages": [{"role": "user", "content": [text]}]}
    first = made.ask("POST", "/v1/messages", body)
    assert first.status == 200 and first.headers["x-pontil-lease"] in other.leases, first.headers
    assert made.ask("POST", "/v1/messages", body).headers["x-pontil-lease"] == first.headers["x-pontil-lease"]
    chat = {"model": OTHER, "max_tokens": 2, "messages": [{"role": "user", "content": "b"}]}
    kept = made.ask("POST", "/v1/chat/completions", chat | {"prompt_cache_retention": "24h"})
    assert kept.headers["x-pontil-lease"] in other.leases and len(other.leases) == 2
    assert {one["model"] for one in made.ask("GET", PATH).json["data"]} == {OTHER}


def test_a_lease_moves_to_a_worker_of_its_model(made: ScriptedSite) -> None:
    """A worker of the first model has more room, and cannot use what it would compute."""
    first, holder = leasing_worker(made, "mixed:0", 5000), of_other(made, "mixed:1")
    name = keep(made)
    other = of_other(made, "mixed:2")
    holder.drain()
    eventually(lambda: name in other.leases and name not in holder.leases, "the move")
    eventually(lambda: shown(made, name)["state"] == "held", "the end of the move")
    other.drain()
    eventually(lambda: shown(made, name)["state"] == "refunded", "the refund")
    assert first.submits.empty() and not first.leases and not first.orders


def test_a_lease_outlives_a_worker_of_its_model(made: ScriptedSite) -> None:
    """The next process of its worker has it again, and one of the same name in another model is not asked."""
    holder = of_other(made, "mixed:1")
    name = keep(made)
    holder.fall_silent(made.proxy.registry)
    eventually(lambda: shown(made, name)["state"] == "moving", "the loss")
    stranger = leasing_worker(made, "mixed:1")
    assert shown(made, name)["state"] == "moving" and not stranger.orders
    successor = of_other(made, "mixed:1")
    eventually(lambda: name in successor.leases and shown(made, name)["state"] == "held", "the next process")
    assert not stranger.orders


def test_a_lease_follows_its_prompt_within_its_model(made: ScriptedSite) -> None:
    """It was lost, and another worker of its model computed the prompt: that one keeps it from then on."""
    first, holder = leasing_worker(made), of_other(made, "mixed:1")
    name = keep(made)
    keys = holder.leases[name].state.keys
    added = b"".join(keys[at : at + 8] for at in range(0, len(keys), 16))
    other = of_other(made, "mixed:2")
    holder.fall_silent(made.proxy.registry)
    eventually(lambda: shown(made, name)["state"] == "moving", "the loss")
    first.script = other.script = partial(told_of, added)
    for model, worker in ((MODEL, first), (OTHER, other)):
        answer = made.ask("POST", "/v1/completions", {"model": model, "prompt": [*IDS, 7], "max_tokens": 2})
        assert answer.status == 200 and worker.submits.get().prompt == [*IDS, 7]
    eventually(lambda: name in other.leases, "the move")
    eventually(lambda: shown(made, name)["state"] == "held", "the lease at its next worker")
    assert not first.orders


@pytest.mark.parametrize("model", [MODEL, OTHER])
def test_a_model_that_is_put_to_sleep_refunds_its_leases(made: ScriptedSite, model: str) -> None:
    workers = {MODEL: leasing_worker(made), OTHER: of_other(made, "mixed:1")}
    names = {one: keep(made, one) for one in workers}
    workers[model].drain(since=SLEEPS)
    eventually(lambda: shown(made, names[model])["state"] == "refunded", "the refund")
    assert shown(made, names[model])["reason"] == SLEEPS
    (kept,) = names.keys() - {model}
    assert shown(made, names[kept])["state"] == "held"


def told_of(added: bytes, worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
    """Tell of the prompt's blocks before its first token, as workers do."""
    yield PrefixDelta(worker.incarnation, worker.proxy, 0, added)
    yield from leasing(worker, submit)
