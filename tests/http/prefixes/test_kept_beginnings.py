# SPDX-License-Identifier: Apache-2.0
"""Leases that come beside answers: by `cache_control` with a time, and by `prompt_cache_retention`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from leasing_worker import BLOCK, LeasingWorker, leasing_worker
from scripted_site import MODEL, HttpAnswer, ScriptedSite, site
from scripted_worker import eventually

from pontil.http.anthropic.schema import MESSAGE
from pontil.runtime.tokenizer.tokenizer import Tokenizer

LONG, OTHER = "a rule that is stable " * 4, "what differs from call to call " * 4
HOUR, DAY = 3600, 86400


@pytest.fixture
def made(tmp_path: Path, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    with site(tmp_path, tokenizer, failover_timeout=60.0) as served:
        yield served


def block(text: str, ttl: str | None = None, **control: Any) -> dict[str, Any]:
    marked = {} if ttl is None else {"cache_control": {"type": "ephemeral", "ttl": ttl}}
    return {"type": "text", "text": text} | marked | control


def ask(served: ScriptedSite, *content: Any, **fields: Any) -> HttpAnswer:
    turns = {"messages": [{"role": "user", "content": list(content) or "hi"}]}
    body = {"model": MODEL, "max_tokens": 20} | turns | fields
    answer = served.ask("POST", "/v1/messages", body)
    assert answer.status == 200, answer.body
    if not fields.get("stream"):
        jsonschema.validate(answer.json, MESSAGE)
    return answer


def held(served: ScriptedSite) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = served.ask("GET", "/v1/prefixes").json["data"]
    return found


def tokens_up_to(worker: LeasingWorker, served: ScriptedSite, text: str) -> int:
    """Return the tokens of whole blocks up to the end of this text in the last prompt."""
    prompt = served.tokenizer.decode(worker.last_prompt, skip_special_tokens=False)
    before = served.tokenizer.encode(prompt[: prompt.index(text) + len(text)], False)
    return len(before) // BLOCK * BLOCK


@pytest.mark.parametrize("place", ["system", "user", "assistant"])
def test_the_prompt_up_to_a_block_is_leased(made: ScriptedSite, place: str) -> None:
    worker = leasing_worker(made, budget=10_000)
    marked = [block(LONG, "1h"), block(OTHER)]
    if place == "system":
        answer = ask(made, system=marked)
    elif place == "user":
        answer = ask(made, *marked)
    else:
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": marked}]
        answer = ask(made, messages=[*turns, {"role": "user", "content": "b"}])
    (lease,) = held(made)
    assert lease["ttl"] == HOUR and answer.headers["x-pontil-lease"] == lease["id"]
    least = tokens_up_to(worker, made, LONG.strip())
    assert least - BLOCK <= lease["tokens"] <= least
    usage = answer.json["usage"]
    assert usage["cache_creation_input_tokens"] == lease["tokens"] > 0
    assert usage["cache_creation"] == {
        "ephemeral_5m_input_tokens": 0,
        "ephemeral_1h_input_tokens": lease["tokens"],
    }
    assert usage["input_tokens"] + lease["tokens"] == len(worker.last_prompt)


def test_tools_are_leased_with_the_system_text(made: ScriptedSite) -> None:
    worker = leasing_worker(made, budget=10_000)
    said = "tells of the weather"
    tool = {"name": "weather", "description": said, "input_schema": {"type": "object"}}
    asked = "Will it rain in Rome tomorrow, or in Oslo?"
    ask(made, block(asked), system="Be brief.", tools=[tool | {"cache_control": {"type": "ephemeral", "ttl": "5m"}}])
    (lease,) = held(made)
    least = tokens_up_to(worker, made, said)
    assert lease["ttl"] == 300 and least <= lease["tokens"] < tokens_up_to(worker, made, asked)


def test_a_repeated_turn_extends_its_lease(made: ScriptedSite) -> None:
    worker = leasing_worker(made, budget=10_000)
    first = ask(made, block(LONG, "5m"), block("one"))
    second = ask(made, block(LONG, "1h"), block("two"), stream=True)
    assert second.headers["x-pontil-lease"] == first.headers["x-pontil-lease"]
    (lease,) = held(made)
    assert lease["ttl"] >= HOUR and len(worker.leases) == 1
    assert '"cache_creation_input_tokens":0' in second.body.decode().replace(" ", "")


def test_a_longer_turn_takes_the_place_of_a_shorter_one(made: ScriptedSite) -> None:
    worker = leasing_worker(made, budget=10_000)
    asked = made.ask("POST", "/v1/prefixes", {"messages": [{"role": "user", "content": LONG}], "ttl": 60}).json
    turns: list[dict[str, Any]] = [{"role": "user", "content": LONG}]
    names: list[str | None] = []
    for _ in range(3):
        names.append(
            ask(made, messages=turns, cache_control={"type": "ephemeral", "ttl": "5m"}).headers["x-pontil-lease"]
        )
        turns += [{"role": "assistant", "content": OTHER}, {"role": "user", "content": OTHER}]
    assert len(set(names)) == 3
    eventually(lambda: {*worker.leases} == {asked["id"], names[-1]}, "the release of the shorter ones")


def test_a_lease_that_finds_no_room_fails_no_request(made: ScriptedSite) -> None:
    worker = leasing_worker(made, budget=100)
    for _ in range(2):
        answer = ask(made, block(LONG, "1h"))
        assert "leases may hold at most 100 in one worker" in answer.headers["x-pontil-lease-refused"]
        assert answer.headers["x-pontil-lease"] is None
        assert answer.json["usage"]["cache_creation_input_tokens"] == 0
    assert not worker.leases and made.value("pontil_leases_refused_total") == 2


def test_a_refusal_of_a_worker_is_told(made: ScriptedSite) -> None:
    worker = leasing_worker(made, budget=10_000)
    grant = worker.grant

    def refuse(submit: Any) -> Any:
        worker.gauges = dict.fromkeys(worker.gauges or {}, 0)
        return grant(submit)

    worker.grant = refuse  # type: ignore[method-assign]
    answer = ask(made, block(LONG, "1h"), stream=True)
    assert answer.headers["x-pontil-lease-refused"] == "there is no room"


def test_retention_of_a_day_leases_the_whole_prompt(made: ScriptedSite) -> None:
    worker = leasing_worker(made, budget=10_000)
    messages = [{"role": "user", "content": LONG}]
    for path, prompt in (("/v1/chat/completions", {"messages": messages}), ("/v1/responses", {"input": LONG})):
        body = {"model": MODEL} | prompt
        for word in ("in_memory", "in-memory"):
            answer = made.ask("POST", path, body | {"prompt_cache_retention": word})
            assert answer.status == 200 and answer.headers["x-pontil-lease"] is None
            assert answer.headers["x-pontil-ignored"] is None
        answer = made.ask("POST", path, body | {"prompt_cache_retention": "24h"})
        assert answer.status == 200, answer.body
        (lease,) = held(made)
        assert lease["id"] == answer.headers["x-pontil-lease"] and lease["ttl"] in (DAY, DAY + 1)
        assert lease["tokens"] == len(worker.last_prompt) // BLOCK * BLOCK
        bad = made.ask("POST", path, body | {"prompt_cache_retention": "1y"})
        assert bad.status == 400
        assert bad.json["error"]["message"] == (
            'prompt_cache_retention must be one of in_memory, in-memory, 24h, not "1y"'
        )


@pytest.mark.parametrize(
    ("control", "says"),
    [
        ({"type": "ephemeral", "ttl": "2h"}, 'ttl must be one of 5m, 1h, not "2h"'),
        ({"type": "ephemeral", "ttl": 300}, "ttl must be a string, not an integer"),
        ({"type": "lasting", "ttl": "1h"}, 'type must be "ephemeral", not "lasting"'),
        ("1h", "must be an object, not a string"),
    ],
)
def test_a_bad_control_is_one_sentence(made: ScriptedSite, control: Any, says: str) -> None:
    marked = block("a") | {"cache_control": control}
    tool = {"name": "weather", "input_schema": {"type": "object"}, "cache_control": control}
    for fields in ({"system": [marked]}, {"cache_control": control}, {"tools": [tool]},
                   {"messages": [{"role": "user", "content": [marked]}]}):  # fmt: skip
        body = {"model": MODEL, "max_tokens": 20, "messages": [{"role": "user", "content": "a"}]} | fields
        answer = made.ask("POST", "/v1/messages", body)
        assert answer.status == 400 and answer.json["type"] == "error"
        assert answer.json["error"]["type"] == "invalid_request_error" and says in answer.json["error"]["message"]
