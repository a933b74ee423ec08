# SPDX-License-Identifier: Apache-2.0
"""Checks of Anthropic's Messages, which a server may lack. They are after faults that servers had: blocks that were
told without having begun, deltas of another kind than their block, calls as text, streams that begin without usage."""

import json
from typing import Any

from pontil.launcher.tools.conformance.api import Api, ApiAnswer, ApiStream, PartRefused, expect, read_stream
from pontil.launcher.tools.conformance.check import Check, topic

CHECKS: list[Check] = []
messages = topic("messages", CHECKS)

ABSENT = (404, 405, 501)
PATH = "/v1/messages"
TOOL = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
# The deltas that a block of each type may have.
DELTAS = {
    "text": ("text_delta", "citations_delta"),
    "thinking": ("thinking_delta", "signature_delta"),
    "tool_use": ("input_json_delta",),
}
REASONS = ("end_turn", "max_tokens", "stop_sequence", "tool_use")


def ask(api: Api, path: str = PATH, **body: Any) -> ApiAnswer:
    """Ask for a message: greedy and short unless the body differs. Raises PartRefused where there is no such path."""
    turns = [{"role": "user", "content": "Count to ten."}]
    answer = api.post(path, {"messages": turns, "temperature": 0, "max_tokens": 8} | body)
    if answer.status in ABSENT:
        raise PartRefused(f"there is nothing at {PATH}")
    return answer


def message(api: Api, **body: Any) -> dict[str, Any]:
    return ask(api, **body).good()


def stream(api: Api, **body: Any) -> ApiStream:
    return read_stream(ask(api, stream=True, **body))


def input_tokens(usage: dict[str, Any]) -> int:
    """Return the tokens of the prompt, those that were cached included."""
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(usage.get(name) or 0 for name in names)


@messages("an answer has id, type, role, model, blocks, a stop reason and usage")
def shape(api: Api) -> None:
    answer = message(api)
    expect(
        answer["type"] == "message" and answer["role"] == "assistant" and answer["id"] and answer["model"], "heading"
    )
    expect(all(block["type"] in DELTAS for block in answer["content"]), f"content {answer['content']}")
    expect(answer["stop_reason"] in REASONS, f"stop_reason {answer['stop_reason']}")
    expect(input_tokens(answer["usage"]) > 0 and 0 < answer["usage"]["output_tokens"] <= 8, f"usage {answer['usage']}")


@messages("a system prompt may be a text or text blocks, and blocks may have cache_control")
def system(api: Api) -> None:
    block = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    plain, blocks = message(api, system="Be brief."), message(api, system=[block])
    expect(input_tokens(plain["usage"]) == input_tokens(blocks["usage"]), "another prompt")


@messages("count_tokens counts the input of a message")
def counted(api: Api) -> None:
    count = ask(api, f"{PATH}/count_tokens", max_tokens=None, temperature=None).good()["input_tokens"]
    expect(count == input_tokens(message(api)["usage"]), f"{count} tokens, not those of the message")


@messages("a stream begins with message_start and its usage, and ends with message_delta and message_stop")
def ends(api: Api) -> None:
    events = stream(api).events
    kinds = [event["type"] for event in events]
    expect(kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], f"events {kinds}")
    expect(input_tokens(events[0]["message"]["usage"]) > 0, "message_start has no input tokens")
    expect(events[-2]["usage"]["output_tokens"] > 0 and events[-2]["delta"]["stop_reason"] in REASONS, "message_delta")


@messages("each block of a stream begins, has deltas of its own kind, and ends before the next one")
def order(api: Api) -> None:
    check_blocks(stream(api).events)
    check_blocks(stream(api, tools=[TOOL], tool_choice={"type": "any"}, max_tokens=100).events)


def check_blocks(events: list[dict[str, Any]]) -> None:
    block: dict[str, Any] | None = None
    begun = 0
    for event in events:
        if event["type"] == "content_block_start":
            expect(block is None and event["index"] == begun, f"block {event['index']} begins in another one")
            block, begun = event["content_block"], begun + 1
        elif event["type"].startswith("content_block"):
            expect(block is not None and event["index"] == begun - 1, f"{event['type']} of a block that has not begun")
            assert block is not None
            if event["type"] == "content_block_stop":
                block = None
            else:
                kind = event["delta"]["type"]
                expect(kind in DELTAS.get(block["type"], ()), f"{kind} in a block of the type {block['type']}")
    expect(begun > 0 and block is None, "a block does not end")


@messages("a call that has to be made is a tool_use block, whole and in the pieces of a stream")
def called(api: Api) -> None:
    asked = {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "get_weather"}, "max_tokens": 100}
    calls = [block for block in message(api, **asked)["content"] if block["type"] == "tool_use"]
    expect(calls and calls[0]["name"] == "get_weather" and isinstance(calls[0]["input"], dict), "no call")
    deltas = [event["delta"] for event in stream(api, **asked).events if event["type"] == "content_block_delta"]
    arguments = "".join(delta.get("partial_json") or "" for delta in deltas)
    expect(json.loads(arguments) == calls[0]["input"], f"other arguments in the stream: {arguments[:60]}")


@messages("a call and its result may be sent back")
def results(api: Api) -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "Rain."}]}
    turns = [
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    expect(message(api, messages=turns, tools=[TOOL])["type"] == "message", "no message")


@messages("stop_sequences end an answer, which names the one that did")
def stopped(api: Api) -> None:
    first = next((block["text"] for block in message(api)["content"] if block["type"] == "text"), "")
    stop = first.strip()[:1]
    if stop:
        answer = message(api, stop_sequences=[stop])
        expect((answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", stop), f"{answer['stop_reason']}")


@messages("errors have Anthropic's shape")
def wrong(api: Api) -> None:
    check_refused(ask(api, messages=[{"role": "user", "content": [{"type": "no-such-block"}]}]))


@messages("max_tokens has to be above the budget of thinking")
def budget(api: Api) -> None:
    check_refused(ask(api, max_tokens=1024, temperature=1, thinking={"type": "enabled", "budget_tokens": 1024}))


def check_refused(answer: ApiAnswer) -> None:
    expect(answer.status in (400, 422), f"expected status 400, not {answer.shown}")
    error = answer.json()
    expect(error.get("type") == "error" and error["error"]["type"] == "invalid_request_error", f"error {answer.shown}")
