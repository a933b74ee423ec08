# SPDX-License-Identifier: Apache-2.0
"""The Messages API over HTTP: the exchange that Anthropic's clients expect, whole and as events."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from saying_sites import Sites
from scripted_site import MODEL, HttpAnswer, ScriptedSite, site
from scripted_worker import ScriptedWorker, eventually

from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Failed, Message, Submit

TEXT = "Hello 😀 world"
HI = [{"role": "user", "content": "hi"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"name": "weather", "description": "of a city", "input_schema": PARAMETERS}]
ROME, OSLO = '{"city": "Rome"}', '{ "city":"Øslo" }'
CALLS = "\n".join(f'<tool_call>\n{{"name": "weather", "arguments": {said}}}\n</tool_call>' for said in (ROME, OSLO))
THOUGHT = "<think>\nTwo cities.\n</think>\n\n"
THINKING = {"type": "enabled"}
BUDGET = THINKING | {"budget_tokens": 20}


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    with ExitStack() as stack:
        yield Sites(tmp_path_factory.mktemp("sites"), stack)


def ask(served: ScriptedSite, headers: dict[str, str] | None = None, **fields: Any) -> HttpAnswer:
    body = {"model": MODEL, "max_tokens": 200, "messages": HI} | fields
    return served.ask("POST", "/v1/messages", body, headers)


def events_of(answer: HttpAnswer) -> list[dict[str, Any]]:
    """Return a stream's events, whose names are their types."""
    assert answer.status == 200, answer.body
    blocks = [block.split("\n") for block in answer.body.decode().split("\n\n") if block]
    told = [(lines[-2].removeprefix("event: "), json.loads(lines[-1].removeprefix("data: "))) for lines in blocks]
    assert all(name == event["type"] for name, event in told)
    return [event for _, event in told]


def joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Put a stream together as the official client does, and check the order of its events."""
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "ping"] and kinds[-2:] == ["message_delta", "message_stop"]
    message = events[0]["message"]
    for event in events[2:-2]:
        if event["type"] == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(dict(event["content_block"]))
            partial = ""
            continue
        assert event["index"] == len(message["content"]) - 1
        block = message["content"][-1]
        if event["type"] == "content_block_stop":
            if partial:
                block["input"] = json.loads(partial)
            continue
        said = event["delta"]
        (member,) = said.keys() - {"type"}
        if said["type"] == "input_json_delta":
            partial += said["partial_json"]
        else:
            block[member] += said[member]
    made: dict[str, Any] = message | events[-2]["delta"] | {"usage": message["usage"] | events[-2]["usage"]}
    return made


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without what differs by chance."""
    content = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    usage = message["usage"]
    total = usage["input_tokens"] + usage["cache_read_input_tokens"]
    return message | {"id": "", "content": content, "usage": [total, usage["output_tokens"]]}


def both(served: ScriptedSite, **fields: Any) -> dict[str, Any]:
    """Return the message, which is the same whole and streamed, and as the document says."""
    whole = ask(served, **fields)
    assert whole.status == 200, whole.body
    events = events_of(ask(served, stream=True, **fields))
    assert plain(joined(events)) == plain(whole.json)
    document = served.ask("GET", "/openapi.json").json
    content = document["paths"]["/v1/messages"]["post"]["responses"]["200"]["content"]
    jsonschema.Draft202012Validator(content["application/json"]["schema"]).validate(whole.json)
    chunk = content["text/event-stream"]["itemSchema"]["else"]["properties"]["data"]["contentSchema"]
    validator = jsonschema.Draft202012Validator(chunk | {"components": document["components"]})
    for event in events_of(ask(served, stream=True, **fields)):
        validator.validate(event)
    made: dict[str, Any] = whole.json
    return made


def prompt_of(served: ScriptedSite) -> str:
    return served.tokenizer.decode(served.last_submit().prompt, skip_special_tokens=False)


def test_a_text_and_its_usage(pair: ScriptedSite) -> None:
    message = both(pair, system="be brief")
    assert message["content"] == [{"type": "text", "text": TEXT}]
    assert (message["stop_reason"], message["stop_sequence"], message["role"]) == ("end_turn", None, "assistant")
    usage = message["usage"]
    counted = pair.ask("POST", "/v1/messages/count_tokens", {"messages": HI, "system": "be brief"}).json
    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}
    chat = pair.ask(
        "POST", "/v1/chat/completions", {"messages": [{"role": "system", "content": "be brief"}, *HI]}
    ).json["usage"]
    assert chat["prompt_tokens"] == counted["input_tokens"] and chat["completion_tokens"] == usage["output_tokens"]


def test_the_events_of_a_text(pair: ScriptedSite) -> None:
    events = events_of(ask(pair, stream=True))
    kinds = [event["type"] for event in events if event["type"] != "content_block_delta"]
    assert kinds == [
        *("message_start", "ping", "content_block_start", "content_block_stop", "message_delta", "message_stop"),
    ]
    assert events[0]["message"]["usage"]["output_tokens"] == 0 and events[0]["message"]["stop_reason"] is None
    assert events[-2]["usage"]["output_tokens"] == 15


def test_thinking_and_calls(sites: Sites) -> None:
    served = sites.saying("qwen", f"{THOUGHT}I look.\n{CALLS}")
    message = both(served, tools=TOOLS, thinking=THINKING)
    thought, text, rome, oslo = message["content"]
    assert thought["thinking"] == "Two cities." and text == {"type": "text", "text": "I look."}
    assert [call["input"] for call in (rome, oslo)] == [{"city": "Rome"}, {"city": "Øslo"}]
    assert rome["name"] == "weather" and rome["id"] != oslo["id"] and message["stop_reason"] == "tool_use"
    assert [block["type"] for block in both(served, tools=TOOLS)["content"]] == ["text", "tool_use", "tool_use"]


def test_a_budget_of_thinking_is_told_to_the_worker(sites: Sites, pair: ScriptedSite) -> None:
    for template, thought in (("qwen", "POSSIBLE"), ("opening", "BEGUN"), ("harmony", "MESSAGE")):
        served = sites.saying(template, "So it is.")
        answer = ask(served, thinking=BUDGET)
        params = served.last_submit().sampling
        assert (params["thinking_token_budget"], params["thought"]) == (20, thought), template
        assert "thinking" not in answer.headers.get("x-pontil-ignored", "")
    answer = ask(pair, thinking=BUDGET)
    assert pair.last_submit().sampling["thinking_token_budget"] is None
    assert answer.status == 200 and "thinking" in answer.headers["x-pontil-ignored"]
    huge = ask(sites.saying("qwen", "So."), thinking=THINKING | {"budget_tokens": 10**29}, max_tokens=10**30)
    assert huge.status == 200 and huge.json["content"][0]["text"] == "So."
    answer = ask(pair, thinking=BUDGET, max_tokens=20)
    assert answer.status == 400 and answer.json["error"]["type"] == "invalid_request_error"
    assert "thinking.budget_tokens" in answer.json["error"]["message"]


def test_what_comes_back_is_the_conversation(sites: Sites) -> None:
    """Reasoning comes back as the model's own where its seal holds; other reasoning is left out and named."""
    served = sites.saying("qwen", f"{THOUGHT}I look.\n{CALLS}")
    content = ask(served, tools=TOOLS, thinking=THINKING).json["content"]
    results = [
        {"type": "tool_result", "tool_use_id": content[2]["id"], "content": [{"type": "text", "text": "7°"}]},
        {"type": "tool_result", "tool_use_id": content[3]["id"], "content": "no such city", "is_error": True},
        {"type": "text", "text": "And now?", "cache_control": {"type": "ephemeral"}},
    ]
    told = [*HI, {"role": "assistant", "content": content}, {"role": "user", "content": results}]
    answer = ask(served, messages=told, tools=TOOLS, thinking=THINKING)
    prompt = prompt_of(served)
    assert "I look." in prompt and "Error: no such city" in prompt and "And now?" in prompt
    assert "x-pontil-ignored" in answer.headers and "signature" not in answer.headers["x-pontil-ignored"]
    content[0] |= {"thinking": "Three cities."}
    answer = ask(served, messages=told, tools=TOOLS, thinking=THINKING)
    assert "messages[].content[].signature" in answer.headers["x-pontil-ignored"]


@pytest.mark.parametrize("most", [1, 12, 40])
def test_an_answer_that_is_cut(sites: Sites, most: int) -> None:
    served = sites.saying("qwen", f"{THOUGHT}{CALLS}")
    more: list[dict[str, Any]] = [{"thinking": THINKING}, {}]
    for thinking in more:
        message = ask(served, tools=TOOLS, max_tokens=most, **thinking).json
        assert message["stop_reason"] == "max_tokens" and message["usage"]["output_tokens"] == most
        events = events_of(ask(served, tools=TOOLS, max_tokens=most, stream=True, **thinking))
        assert events[-2]["delta"]["stop_reason"] == "max_tokens"
        opened = [event["index"] for event in events if event["type"] == "content_block_start"]
        assert opened == [event["index"] for event in events if event["type"] == "content_block_stop"]


def test_stop_sequences_and_more_tokens_than_fit(pair: ScriptedSite) -> None:
    message = ask(pair, stop_sequences=["😀", "x"]).json
    assert message["content"][0]["text"] == "Hello " and message["stop_reason"] == "stop_sequence"
    assert message["stop_sequence"] == "😀"
    assert ask(pair, max_tokens=10**6).json["stop_reason"] == "end_turn", "clients ask for 32000 and more"


def test_the_answer_goes_on_with_what_the_assistant_began(pair: ScriptedSite) -> None:
    begun = [*HI, {"role": "assistant", "content": "Well, "}]
    assert ask(pair, messages=begun).json["content"][0]["text"] == TEXT
    assert prompt_of(pair).endswith("assistant\nWell, ")


def test_the_names_of_anthropics_models_mean_the_one_that_is_here(pair: ScriptedSite) -> None:
    answer = ask(pair, model="claude-sonnet-4-5")
    assert answer.json["model"] == MODEL and answer.headers["x-pontil-ignored"] == "model"
    refused = ask(pair, model="gpt-5")
    assert refused.status == 404 and refused.json["error"]["type"] == "not_found_error"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "content[0].source.type"),
        ({"messages": [{"role": "user", "content": [{"type": "wobble"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]}, "tool_use_id"),
        ({"messages": [{"role": "developer", "content": "x"}], "system": "y"}, "messages[0].role"),
        ({"messages": [{"role": "system", "content": "x"}], "system": "y"}, "messages"),
        ({"messages": [{"role": "system", "content": ""}]}, "messages"),
        ({"messages": [{"role": "system", "content": None}, *HI]}, "messages[0].content"),
        ({"messages": []}, "messages is empty"),
        ({"max_tokens": None}, "max_tokens is missing"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "maximum context length"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "other"}}, "none of the tools"),
        ({"temprature": 1}, "did you mean temperature?"),
        ({"stop": "x"}, "use stop_sequences"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_mistakes_have_anthropics_shape(pair: ScriptedSite, fields: dict[str, Any], says: str) -> None:
    for stream in (False, True):
        answer = ask(pair, stream=stream, **fields)
        assert answer.status == 400 and answer.json["type"] == "error"
        assert answer.json["error"]["type"] == "invalid_request_error" and says in answer.json["error"]["message"]
        assert answer.json["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]


def test_refusals_before_the_handler_have_it_too(pair: ScriptedSite) -> None:
    for method, path, body, status, kind in (
        ("GET", "/v1/messages", None, 405, "invalid_request_error"),
        ("POST", "/v1/messages/batches", {}, 404, "not_found_error"),
        ("POST", "/v1/messages", b"x" * 100_001, 413, "request_too_large"),
        ("POST", "/v1/messages", b"{", 400, "invalid_request_error"),
    ):
        answer = pair.ask(method, path, body)
        assert (answer.status, answer.json["error"]["type"]) == (status, kind)
        assert answer.json["request_id"] == answer.headers["request-id"]
    assert "error" in pair.ask("GET", "/v1/messagesX").json and "type" not in pair.ask("GET", "/v1/messagesX").json


def test_keys_in_either_header(tmp_path: Path, tokenizer: Tokenizer) -> None:
    callers = (("alice", hashlib.sha256(b"secret").hexdigest()),)
    allowances = (("alice", (("rate", 2),)),)
    with site(tmp_path, tokenizer, callers=callers, allowances=allowances) as made:
        made.worker()
        refused = ask(made)
        assert refused.status == 401 and refused.json["error"]["type"] == "authentication_error"
        for header in ({"x-api-key": "secret", "anthropic-version": "2023-06-01"}, {"authorization": "Bearer secret"}):
            assert ask(made, header).status == 200
        limited = ask(made, {"x-api-key": "secret"})
        assert limited.status == 429 and limited.json["error"]["type"] == "rate_limit_error"
        assert int(limited.headers["retry-after"]) > 0


def test_without_workers_it_is_overloaded(bare: ScriptedSite) -> None:
    answer = ask(bare)
    assert answer.status == 503 and answer.json["error"]["type"] == "overloaded_error"
    assert int(answer.headers["retry-after"]) > 0


def test_a_stream_that_breaks(bare: ScriptedSite) -> None:
    def breaks(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
        yield worker.tokens(submit, 0, [40])
        bare.wait_for_readers()
        yield Failed(worker.incarnation, worker.proxy, submit.request_id, submit.attempt, "no", 503)

    bare.worker(script=breaks)
    answer = ask(bare, stream=True)
    *_, error = events_of(answer)
    assert error["error"]["type"] == "overloaded_error" and "attempt 1 of 1" in error["error"]["message"]
    assert error["request_id"] == answer.headers["request-id"]


def test_a_stream_is_continued_after_each_of_its_events(tmp_path: Path) -> None:
    """After each of them the rest follows: no text is missing or told twice."""
    with ExitStack() as stack:
        served = Sites(tmp_path, stack, resume_folder=str(tmp_path / "streams")).saying(
            "qwen", f"{THOUGHT}I see. {CALLS}"
        )
        fields = {"tools": TOOLS, "thinking": THINKING, "stream": True}
        answer = ask(served, {"pontil-resume": "1"}, **fields)
        blocks = answer.body.split(b"\n\n")[:-1]
        ids = [block.split(b"\n")[0].removeprefix(b"id: ").decode() for block in blocks]
        name, records = str(answer.headers["x-pontil-stream"]), served.proxy.streams.records
        assert len(set(ids)) == len(blocks) and records is not None
        for number, identity in enumerate((name, *ids[:-1])):
            eventually(lambda: name not in served.proxy.streams.journals and records.is_free(name), "the stream's end")
            rest = served.ask("POST", "/v1/messages", {}, {"last-event-id": identity})
            assert told_text(rest.body.split(b"\n\n")[:-1]) == told_text(blocks[number:])


def told_text(blocks: list[bytes]) -> list[str]:
    """Return the kinds of events but for deltas, which may be cut at other places, and what the deltas say."""
    events = [json.loads(block.split(b"\ndata: ")[1]) for block in blocks]
    kinds = [event["type"] for event in events if event["type"] != "content_block_delta"]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    return [*kinds, "".join(str(said) for delta in deltas for name, said in delta.items() if name != "type")]
