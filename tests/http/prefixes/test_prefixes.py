# SPDX-License-Identifier: Apache-2.0
"""Leases on prefixes over HTTP: what is promised, to whom, and what becomes of it."""

import hashlib
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from leasing_worker import BLOCK, BLOCK_BYTES, LeasingWorker, checked, leasing_worker
from scripted_site import HttpAnswer, ScriptedSite, site
from scripted_worker import eventually

from pontil.http.prefixes.request import MOST_TTL
from pontil.http.prefixes.schema import PREFIXES
from pontil.runtime.accounting.audit import audit
from pontil.runtime.accounting.usage_file import open_to_read
from pontil.runtime.accounting.usage_report import usage_sums
from pontil.runtime.tokenizer.tokenizer import Tokenizer

ALICE, BOB = "sk-alice-0123456789", "sk-bob-0123456789"
IDS = [40 + number % 50 for number in range(40)]
PATH = "/v1/prefixes"


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


CALLERS = (("alice", digest(ALICE)), ("bob", digest(BOB)))


@pytest.fixture
def made(tmp_path: Path, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    with site(tmp_path, tokenizer, usage_log=str(tmp_path / "usage.db"), failover_timeout=60.0) as served:
        yield served


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    """A site that keeps nothing of what the tests ask."""
    with site(tmp_path_factory.mktemp("refusing"), tokenizer) as served:
        leasing_worker(served)
        yield served


@pytest.fixture
def shut(tmp_path: Path, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    with site(tmp_path, tokenizer, callers=CALLERS, lease_client_memory=350) as served:
        yield served


def ask(served: ScriptedSite, method: str, path: str = PATH, body: Any = None, key: str | None = None) -> HttpAnswer:
    return served.ask(method, path, body, None if key is None else {"authorization": f"Bearer {key}"})


def keep(served: ScriptedSite, key: str | None = None, **fields: Any) -> dict[str, Any]:
    answer = ask(served, "POST", body={"prompt": IDS, "ttl": 600} | fields, key=key)
    assert answer.status == 200, answer.body
    return checked(answer)


def error(answer: HttpAnswer) -> tuple[int, str]:
    return answer.status, answer.json["error"]["message"]


def test_a_prefix_is_kept_shown_extended_and_released(made: ScriptedSite) -> None:
    worker, began = leasing_worker(made), time.time()
    kept = keep(made)
    assert (kept["object"], kept["state"], kept["tokens"], kept["bytes"], kept["ttl"]) == (
        "prefix",
        "held",
        32,
        200,
        600,
    )
    assert kept["usage"] == {
        "prompt_tokens": 40, "completion_tokens": 0, "total_tokens": 40, "prompt_tokens_details": {"cached_tokens": 0},
        "service_tier": "default",
    }  # fmt: skip
    assert began - 1 < kept["expires_at"] - 600 < time.time() + 1
    one = f"{PATH}/{kept['id']}"
    assert checked(ask(made, "GET", one))["id"] == kept["id"]
    listed = ask(made, "GET").json
    jsonschema.validate(listed, PREFIXES)
    assert [each["id"] for each in listed["data"]] == [kept["id"]]
    longer = checked(ask(made, "PATCH", one, {"ttl": "1h"}))
    assert 3600 <= longer["ttl"] <= 3660 and longer["byte_seconds"]["granted"] == 200 * longer["ttl"]
    eventually(lambda: worker.leases[kept["id"]].state.seconds == longer["ttl"], "the worker's extension")
    gone = checked(ask(made, "DELETE", one))
    amounts = gone["byte_seconds"]
    assert gone["state"] == "released" and amounts["granted"] == amounts["held"] + amounts["released"]
    eventually(lambda: not worker.leases, "the worker's release")
    assert checked(ask(made, "DELETE", one)) == gone, "a second time changes nothing"
    assert ask(made, "GET").json["data"] == []
    assert error(ask(made, "PATCH", one, {"ttl": 60})) == (409, "the prefix is released")


def test_a_prompt_that_is_only_kept_is_billed_and_audited(made: ScriptedSite, tmp_path: Path) -> None:
    leasing_worker(made)
    kept = keep(made)
    ask(made, "DELETE", f"{PATH}/{kept['id']}")
    with closing(open_to_read(tmp_path / "usage.db")) as database:

        def sums() -> list[Any]:
            return usage_sums(database)

        eventually(lambda: sums() and sums()[0].leases == 1, "the row of the lease")
        assert (sums()[0].prompt_tokens, sums()[0].completion_tokens, sums()[0].lease_refunded) == (40, 0, 0)
        rows = database.execute("SELECT finish FROM requests").fetchall()
        assert rows == [("leased",)]
        live = made.ask("GET", "/admin/ledger").json
        eventually(lambda: all(one.equal for one in audit(database, live)), "equal books")


def test_the_beginning_of_a_chat_is_kept_without_an_answers_turn(made: ScriptedSite) -> None:
    worker = leasing_worker(made)
    system = {"role": "system", "content": "You help with long things. " * 4}
    kept = keep(made, prompt=None, messages=[system])
    prompt = worker.submits.get().prompt
    made.ask("POST", "/v1/chat/completions", {"messages": [system, {"role": "user", "content": "hi"}], "max_tokens": 1})
    assert worker.submits.get().prompt[: len(prompt)] == prompt and kept["tokens"] == len(prompt) // BLOCK * BLOCK


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"ttl": 0}, 400, f"ttl must be from 1 second to 7 days, which are {MOST_TTL} seconds"),
        ({"ttl": "8d"}, 400, "ttl must be from 1 second to 7 days"),
        ({"ttl": "soon"}, 400, 'ttl must be a number of seconds, or a text like "5m", "1h" or "1d"'),
        ({"ttl": True}, 400, "ttl must be a number of seconds"),
        ({"ttl": 1e300}, 400, "ttl must be a number of seconds"),
        ({"model": "other"}, 404, "other"),
        ({"prompt": None}, 400, "prompt or messages has to be there"),
        ({"prompt": ["a", "b"]}, 400, "at most 1"),
        ({"messages": [{"role": "user", "content": "hi"}]}, 400, "only one of them"),
        ({"documents": [{"text": "x"}]}, 400, "documents is for messages"),
        ({"prompt": [5] * 15}, 400, "the prefix has 15 tokens, and a lease is on whole blocks of 16"),
        ({"prompt": [5] * 512}, 400, "maximum context length is 512"),
        ({"prompt": [5] * 200}, 409, "the lease would hold 1200 bytes, and leases may hold at most 1000 in one worker"),
    ],
)
def test_what_cannot_be_kept_is_refused_in_a_sentence(
    refusing: ScriptedSite, fields: dict[str, Any], status: int, said: str
) -> None:
    answer = ask(refusing, "POST", body={"prompt": IDS} | fields)
    assert error(answer)[0] == status and said in error(answer)[1], answer.body
    assert refusing.workers[0].submits.empty() and not refusing.proxy.leases.views


def test_a_full_worker_says_when_there_will_be_room(made: ScriptedSite) -> None:
    worker = leasing_worker(made, budget=500)
    keep(made, ttl=100)
    keep(made, ttl=900)
    eventually(lambda: made.proxy.registry.workers[worker.incarnation].gauges["lease_free_bytes"] == 100, "a beat")
    answer = ask(made, "POST", body={"prompt": IDS})
    assert error(answer)[0] == 429 and "would hold 200 bytes, and leases may hold 100 more now" in error(answer)[1]
    assert 30 <= int(answer.headers["retry-after"]) <= 101
    assert error(ask(made, "POST", body={"prompt": IDS + IDS[:24]}))[0] == 429
    later = ask(made, "POST", body={"prompt": IDS + IDS[:24]})
    assert 800 <= int(later.headers["retry-after"]) <= 901, "the first to end would not be enough"


def test_a_refusal_of_the_worker_itself_leaves_nothing(made: ScriptedSite) -> None:
    worker = leasing_worker(made)
    shown = dict(worker.gauges or {})
    worker.budget = 100
    worker.show_room()
    refusing = dict(worker.gauges or {})
    worker.gauges = shown
    grant = worker.grant

    def refuse(submit: Any) -> Any:
        worker.gauges = refusing
        return grant(submit)

    worker.grant = refuse  # type: ignore[method-assign]
    answer = ask(made, "POST", body={"prompt": IDS})
    assert error(answer) == (429, "there is no room") and answer.headers["retry-after"] == "1"
    assert not made.proxy.leases.views and not made.proxy.leases.wishes


def test_another_key_sees_nothing_and_each_has_its_own_budget(shut: ScriptedSite) -> None:
    leasing_worker(shut)
    kept = keep(shut, ALICE)
    one = f"{PATH}/{kept['id']}"
    for method, body in (("GET", None), ("PATCH", {"ttl": 60}), ("DELETE", None)):
        answer = ask(shut, method, one, body, BOB)
        assert error(answer) == (404, f"there is no prefix '{kept['id']}' of this key")
    assert ask(shut, "GET", key=BOB).json["data"] == []
    refused = ask(shut, "POST", body={"prompt": IDS}, key=ALICE)
    assert error(refused)[0] == 429
    assert "would hold 200 bytes, and this key's leases hold 200 of the 350 that they may" in error(refused)[1]
    assert 500 <= int(refused.headers["retry-after"]) <= 601
    never = ask(shut, "POST", body={"prompt": IDS * 2}, key=ALICE)
    assert error(never)[0] == 409 and "would hold 500 bytes" in error(never)[1]
    keep(shut, BOB)
    assert checked(ask(shut, "DELETE", one, key=ALICE))["state"] == "released"


def test_a_lease_moves_to_the_next_process_of_its_worker(made: ScriptedSite) -> None:
    first = leasing_worker(made)
    kept = keep(made)
    one = f"{PATH}/{kept['id']}"
    first.fall_silent(made.proxy.registry)
    eventually(lambda: checked(ask(made, "GET", one))["state"] == "moving", "the loss of the worker")
    second = leasing_worker(made)
    eventually(lambda: checked(ask(made, "GET", one))["state"] == "held", "the lease at the next process")
    (order,) = second.orders
    assert (order.action, order.seconds, len(order.keys)) == ("resume", 600, 32) and order.age >= 0.0
    assert checked(ask(made, "DELETE", one))["byte_seconds"]["refunded"] == 0


def test_what_the_next_process_does_not_find_is_refunded(made: ScriptedSite, tmp_path: Path) -> None:
    first = leasing_worker(made)
    one = f"{PATH}/{keep(made)['id']}"
    first.fall_silent(made.proxy.registry)
    second = LeasingWorker(made.endpoint, "mixed:0", made.tokenizer, (), role="mixed").ready(1000)
    second.remembers = False
    made.workers.append(second)
    second.start()
    eventually(lambda: checked(ask(made, "GET", one))["state"] == "refunded", "the refund")
    shown = checked(ask(made, "GET", one))
    assert shown["reason"] == "its worker ended, and its successor did not find all of it"
    amounts = shown["byte_seconds"]
    assert amounts["granted"] == amounts["held"] + amounts["refunded"] and amounts["refunded"] > 0
    eventually(lambda: row(tmp_path) == ("closed", "refunded", amounts["refunded"]), "the row")


def row(folder: Path) -> tuple[Any, ...]:
    with closing(open_to_read(folder / "usage.db")) as database:
        found: tuple[Any, ...] = database.execute("SELECT state, outcome, refunded FROM leases").fetchone()
        return found


def test_a_worker_that_refunds_is_believed_and_one_that_forgot_refunds(made: ScriptedSite) -> None:
    worker = leasing_worker(made)
    drained, forgotten = keep(made), keep(made)
    worker.refund(drained["id"], "its worker drains")
    one = f"{PATH}/{drained['id']}"
    eventually(lambda: checked(ask(made, "GET", one))["state"] == "refunded", "the refund")
    assert checked(ask(made, "GET", one))["reason"] == "its worker drains"
    worker.leases.clear()
    worker.fall_silent(made.proxy.registry)
    assert checked(ask(made, "GET", f"{PATH}/{forgotten['id']}"))["state"] == "moving"


def test_a_lease_that_is_over_here_is_released_where_it_is_held(made: ScriptedSite) -> None:
    """A worker that had been taken for dead comes back with it."""
    worker = leasing_worker(made)
    kept = keep(made)
    state = worker.leases[kept["id"]].state
    ask(made, "DELETE", f"{PATH}/{kept['id']}")
    eventually(lambda: not worker.leases, "the release")
    worker.say(replace(state, receiver=worker.proxy))
    eventually(lambda: [one.action for one in worker.orders] == ["release", "release"], "another order")


def test_nonsense_of_a_worker_is_dropped(made: ScriptedSite) -> None:
    worker = leasing_worker(made)
    kept = keep(made)
    state = worker.leases[kept["id"]].state
    before = made.value("pontil_frames_dropped_total", reason="malformed")
    wrong: list[dict[str, Any]] = [
        {"state": "lost"}, {"size": -1}, {"size": 1 << 60}, {"seconds": -1}, {"tokens": -1}, {"age": -1.0},
        {"age": float("nan")}, {"keys": b"x"}, {"owner": "x" * 513},
    ]  # fmt: skip
    for fields in wrong:
        worker.say(replace(state, receiver=worker.proxy, **fields))
    eventually(
        lambda: made.value("pontil_frames_dropped_total", reason="malformed") == before + len(wrong), "all dropped"
    )
    assert checked(ask(made, "GET", f"{PATH}/{kept['id']}"))["state"] == "held"


def test_the_worker_with_room_is_chosen(made: ScriptedSite) -> None:
    full, roomy = leasing_worker(made, "mixed:0", budget=100), leasing_worker(made, "mixed:1", budget=1000)
    for _ in range(3):
        keep(made)
    assert len(roomy.leases) == 3 and not full.leases
    assert BLOCK_BYTES == 100
