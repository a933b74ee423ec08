# SPDX-License-Identifier: Apache-2.0
"""A key's allowance is known wherever its request is."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from sanic import Sanic
from scripted_site import MODEL, HttpAnswer, ScriptedSite, site
from scripted_worker import DEADLINE, eventually

from pontil.http.access.keyring import ADMIN, Caller, Keyring
from pontil.http.anthropic.schema import MESSAGE
from pontil.http.openai.responses.schema import RESPONSE
from pontil.http.stream.reply_schema import CHAT_USAGE, USAGE
from pontil.runtime.foundation.fair_share import ServiceClass, class_of
from pontil.runtime.proxy.requests.ticket import UNLIMITED, Allowance
from pontil.runtime.tokenizer.tokenizer import Tokenizer

ALICE, BOB, ROOT = "sk-alice-0123456789", "sk-bob-0123456789", "adm-0123456789-adm"
WORDS = [each.word for each in ServiceClass]
SETTINGS = (("share", 2.0), ("requests", 8), ("priority", True))


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


CALLERS = (("alice", digest(ALICE)), ("bob", digest(BOB)))


@pytest.fixture(scope="module")
def shut(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    """A site with two keys: Alice's may set a priority, Bob's may not."""
    folder = tmp_path_factory.mktemp("shut")
    with site(folder, tokenizer, callers=CALLERS, admin=digest(ROOT), allowances=(("alice", SETTINGS),)) as made:
        made.worker()
        yield made


def ask(made: ScriptedSite, key: str, path: str = "/v1/completions", **fields: Any) -> HttpAnswer:
    body = {"model": MODEL, "max_tokens": 1} | fields
    body |= {"prompt": "hi"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "hi"}]}
    return made.ask("POST", path, body, {"authorization": f"Bearer {key}"})


def test_a_key_has_what_its_line_says() -> None:
    keyring = Keyring.of([list(one) for one in CALLERS], digest(ROOT), [["alice", [list(one) for one in SETTINGS]]])
    assert keyring.caller(ALICE.encode()) == Caller("alice", False, Allowance(2.0, requests=8, priority=True))
    assert keyring.caller(BOB.encode()) == Caller("bob", False, Allowance())
    assert keyring.caller(ROOT.encode()) == ADMIN and ADMIN.allowance == UNLIMITED


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_who_may_not_is_not_served_before_others(shut: ScriptedSite, path: str) -> None:
    refused = ask(shut, BOB, path, priority=-1)
    error = refused.json["error"]
    assert (refused.status, error["param"], error["type"]) == (403, "priority", "permission_error")
    assert "priority=yes" in error["message"]
    assert [ask(shut, BOB, path, priority=number).status for number in (0, 5)] == [200, 200]
    assert [ask(shut, key, path, priority=-1).status for key in (ALICE, ROOT)] == [200, 200]
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{shut.port}/v1", api_key=BOB, max_retries=0)
    with pytest.raises(openai.PermissionDeniedError):
        client.completions.create(model=MODEL, prompt="hi", extra_body={"priority": -1})


def test_without_keys_everybody_may(bare: ScriptedSite) -> None:
    worker = bare.worker()
    assert bare.complete(priority=-7).status == 200
    assert worker.submits.get(timeout=DEADLINE).priority == -7


def test_another_allowance_counts_from_the_next_request(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with site(tmp_path, tokenizer, callers=CALLERS) as made:
        made.worker()
        assert ask(made, ALICE, priority=-1).status == 403
        access = Sanic.get_app(f"pontil-{made.proxy.incarnation}").ctx.access
        access.keyring = Keyring.of(CALLERS, None, [["alice", [["priority", True]]]])
        assert ask(made, ALICE, priority=-1).status == 200


def usages(made: ScriptedSite, key: str) -> list[dict[str, Any]]:
    """Return the usage of each API's answer to this key, whole and streamed."""
    own, said = {"authorization": f"Bearer {key}"}, [{"role": "user", "content": "hi"}]
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    found = [ask(made, key, path).json["usage"] for path in ("/v1/completions", "/v1/chat/completions")]
    found += [ask(made, key, "/v1/chat/completions", **streamed).events[-2]["usage"]]
    answers = [
        made.ask("POST", "/v1/responses", {"input": "hi", "max_output_tokens": 1}, own),
        made.ask("POST", "/v1/messages", {"model": MODEL, "max_tokens": 1, "messages": said}, own),
    ]
    for answer, schema in zip(answers, (RESPONSE, MESSAGE), strict=True):
        jsonschema.validate(answer.json, schema)
        found.append(answer.json["usage"])
    jsonschema.validate(found[0], USAGE)
    jsonschema.validate(found[1], CHAT_USAGE)
    return found


def test_usage_tells_the_share_of_a_key_that_has_one(shut: ScriptedSite, tmp_path: Path, tokenizer: Tokenizer) -> None:
    assert [usage.get("share") for usage in usages(shut, ALICE)] == [2.0] * 5
    assert [usage.get("share") for key in (BOB, ROOT) for usage in usages(shut, key)] == [None] * 10
    with site(tmp_path, tokenizer, callers=CALLERS, allowances=(("alice", SETTINGS),), fair_by="none") as made:
        made.worker()
        for key in (ALICE, BOB):
            found = usages(made, key)
            assert [usage.get("share") for usage in found] == [None] * 5, "shares do not count"
            assert [usage["service_tier"] for usage in found] == ["default"] * 4 + ["standard"]
            assert ask(made, key, service_tier="flex").json["usage"]["service_tier"] == "flex", "classes stay"


def test_without_keys_all_are_of_the_standard_class_and_may_ask_for_less(bare: ScriptedSite) -> None:
    worker = bare.worker()
    told = {}
    for tier in ("auto", "default", "priority", "scale", "flex"):
        usage = bare.complete(service_tier=tier).json["usage"]
        assert "share" not in usage
        told[tier] = usage["service_tier"], class_of(worker.submits.get(timeout=DEADLINE).priority).gives_way
    assert told == dict.fromkeys(("auto", "default", "priority", "scale"), ("default", False)) | {
        "flex": ("flex", True)
    }


@pytest.fixture(scope="module")
def classed(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    """A site with two keys: Alice's is interactive, Bob's is of the class batch."""
    allowances = (("alice", (("class", "interactive"),)), ("bob", (("class", "batch"),)))
    with site(tmp_path_factory.mktemp("classed"), tokenizer, callers=CALLERS, allowances=allowances) as made:
        made.worker()
        yield made


@pytest.mark.parametrize(
    ("key", "asked", "told"),
    [
        (ALICE, None, "priority"), (ALICE, "auto", "priority"), (ALICE, "default", "default"), (ALICE, "flex", "flex"),
        (ALICE, "scale", "priority"),
        (BOB, None, "flex"), (BOB, "priority", "flex"), (BOB, "default", "flex"),
    ],
)  # fmt: skip
def test_a_request_may_lower_its_class_and_its_usage_says_it(
    classed: ScriptedSite, key: str, asked: str | None, told: str
) -> None:
    tier = {} if asked is None else {"service_tier": asked}
    for path in ("/v1/completions", "/v1/chat/completions"):
        answer = ask(classed, key, path, **tier)
        assert answer.json["usage"]["service_tier"] == answer.json["service_tier"] == told
        events = [event for event in ask(classed, key, path, stream=True, **tier).events if event != "[DONE]"]
        assert events and {event["service_tier"] for event in events} == {told}
    response = classed.ask(
        "POST", "/v1/responses", {"input": "hi", "max_output_tokens": 1} | tier, {"authorization": f"Bearer {key}"}
    )
    assert response.json["usage"]["service_tier"] == response.json["service_tier"] == told


def test_a_message_tells_its_class_in_the_words_of_its_api(classed: ScriptedSite) -> None:
    body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
    told = [
        classed.ask("POST", "/v1/messages", body | fields, {"x-api-key": key}).json["usage"]["service_tier"]
        for key, fields in ((ALICE, {}), (ALICE, {"service_tier": "standard_only"}), (BOB, {}))
    ]
    assert told == ["priority", "standard", "batch"]
    refused = ask(classed, ALICE, service_tier="first")
    assert (refused.status, refused.json["error"]["param"]) == (400, "service_tier")


def test_requests_tokens_and_what_waits_are_counted_by_class(tmp_path: Path, tokenizer: Tokenizer) -> None:
    def metrics(made: ScriptedSite) -> dict[str, float]:
        text = made.ask("GET", "/metrics").body.decode()
        lines = [line for line in text.splitlines() if line.startswith("pontil_class_")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def silent(worker: Any, submit: Any) -> Iterator[Any]:
        yield from ()

    with site(tmp_path, tokenizer) as made:
        made.worker()
        usage = made.complete(service_tier="flex", max_tokens=3).json["usage"]
        assert made.complete(service_tier="scale", max_tokens=1).status == 200
        found = metrics(made)
        assert {name: found[f'pontil_class_requests_total{{class="{name}"}}'] for name in WORDS} == {
            "interactive": 0, "standard": 1, "batch": 1,
        }  # fmt: skip
        assert found['pontil_class_tokens_total{class="batch"}'] == usage["total_tokens"] == 5
        made.workers[0].script = silent
        connection = made.connect()
        body = json.dumps({"model": MODEL, "prompt": "hi", "service_tier": "flex"})
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        waiting = {name: f'pontil_class_requests_waiting{{class="{name}"}}' for name in WORDS}
        eventually(lambda: metrics(made)[waiting["batch"]] == 1, "the request that waits")
        assert metrics(made)[waiting["standard"]] == metrics(made)[waiting["interactive"]] == 0
        rows = {
            row["class"]: (row["running"], row["waiting"]) for row in made.ask("GET", "/admin/topology").json["classes"]
        }
        assert rows == {"interactive": (0, 0), "standard": (0, 0), "batch": (0, 1)}
        connection.close()


def test_an_operator_sees_what_each_key_was_served_in_each_class(classed: ScriptedSite) -> None:
    """Clients, who may read the metrics, see no key."""
    before = {(row["key"], row["class"]): row for row in classed.ask("GET", "/admin/topology").json["keys"]}
    assert ask(classed, ALICE).status == ask(classed, ALICE, service_tier="flex").status == 200
    rows = classed.ask("GET", "/admin/topology").json["keys"]
    assert [(row["key"], row["class"]) for row in rows[:2]] == [("alice", "batch"), ("alice", "interactive")]
    for row in rows[:2]:
        earlier = before.get((row["key"], row["class"]), {"requests": 0, "tokens": 0})
        assert row["requests"] == earlier["requests"] + 1 and row["tokens"] > earlier["tokens"]
        assert (row["share"], row["running"], row["waiting"]) == (1.0, 0, 0)
    assert "alice" not in classed.ask("GET", "/metrics", None, {"authorization": f"Bearer {BOB}"}).body.decode()
