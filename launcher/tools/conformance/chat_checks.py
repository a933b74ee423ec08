# SPDX-License-Identifier: Apache-2.0
"""Checks of chats: answers, streams, structured output and tools."""

import json
from typing import Any

from pontil.launcher.tools.conformance.api import Api, ApiStream, expect
from pontil.launcher.tools.conformance.check import Check, topic
from pontil.launcher.tools.conformance.completion_checks import check_usage

CHECKS: list[Check] = []
chats, streams = topic("chat", CHECKS), topic("chat streams", CHECKS)
structure, tools = topic("structured output", CHECKS), topic("tools", CHECKS)

SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "integer"}, "even": {"type": "boolean"}},
    "required": ["number", "even"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def choice_of(made: dict[str, Any]) -> dict[str, Any]:
    choice: dict[str, Any] = made["choices"][0]
    return choice


@chats("an answer has id, object, created, model, a message and usage")
def shape(api: Api) -> None:
    made = api.chat().good()
    expect(made["object"] == "chat.completion" and isinstance(made["created"], int), "object or created")
    message = choice_of(made)["message"]
    expect(message["role"] == "assistant" and isinstance(message["content"], str), f"message {message}")
    expect(choice_of(made)["finish_reason"] in ("stop", "length"), "finish_reason")
    check_usage(made["usage"])


@chats("max_completion_tokens bounds an answer")
def budget(api: Api) -> None:
    made = api.chat(max_tokens=None, max_completion_tokens=3).good()
    expect(made["usage"]["completion_tokens"] <= 3, f"{made['usage']['completion_tokens']} tokens")


@chats("content may be a list of text parts")
def parts(api: Api) -> None:
    content = [{"type": "text", "text": "Count to ten."}]
    made = api.chat(messages=[{"role": "user", "content": content}]).good()
    expect(
        choice_of(made)["message"]["content"] == choice_of(api.chat().good())["message"]["content"], "another answer"
    )


@chats("system and developer messages are taken")
def system(api: Api) -> None:
    for role in ("system", "developer"):
        asked = [{"role": role, "content": "Be brief."}, {"role": "user", "content": "Hello"}]
        expect(choice_of(api.chat(messages=asked).optional())["message"]["role"] == "assistant", f"role {role}")


@chats("earlier answers may be sent back, with content null and tool calls")
def sent_back(api: Api) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    asked = [
        *WEATHER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Rain, 12 degrees."},
    ]
    api.chat(messages=asked, tools=[TOOL]).optional()


@chats("n gives so many messages")
def many(api: Api) -> None:
    made = api.chat(n=2, temperature=1, seed=5).good()
    expect([choice["index"] for choice in made["choices"]] == [0, 1], "indices are not 0 and 1")


@chats("logprobs with top_logprobs describe each token")
def logprobs(api: Api) -> None:
    choice = choice_of(api.chat(logprobs=True, top_logprobs=2).optional())
    found = choice["logprobs"]["content"]
    expect(found and all(len(one["top_logprobs"]) == 2 for one in found), "not two most likely tokens each")
    expect(all({"token", "logprob", "bytes"} <= set(one) for one in found), "token, logprob or bytes are missing")
    known = b"".join(bytes(one["bytes"] or ()) for one in found)
    expect(known.decode(errors="replace").startswith(choice["message"]["content"]), "the bytes do not make the content")


@chats("user and metadata change nothing")
def harmless(api: Api) -> None:
    plain = choice_of(api.chat().good())["message"]["content"]
    made = choice_of(api.chat(user="somebody", metadata={"team": "blue"}).optional())["message"]["content"]
    expect(made == plain, "another answer")


@streams("the first event brings the role, and the contents make the same answer")
def stream(api: Api) -> None:
    made = api.stream_chat()
    expect(made.events[0]["object"] == "chat.completion.chunk", "object")
    expect(made.choices[0]["delta"].get("role") == "assistant", f"the first delta is {made.choices[0]['delta']}")
    expect(made.text == choice_of(api.chat().good())["message"]["content"], "another content than without a stream")
    expect(made.done, "no [DONE]")


@streams("all events of a stream have one id")
def one_id(api: Api) -> None:
    expect(len({event["id"] for event in api.stream_chat().events}) == 1, "several ids")


@streams("include_usage adds one last event with usage and no choices")
def stream_usage(api: Api) -> None:
    *others, last = api.stream_chat(stream_options={"include_usage": True}).events
    expect(last["choices"] == [], "the last event has choices")
    expect(not any(event.get("usage") for event in others), "usage in an earlier event")
    check_usage(last["usage"])


@structure("response_format json_object gives JSON")
def json_object(api: Api) -> None:
    asked = [{"role": "user", "content": "Give me a JSON object with the fields name and age."}]
    made = choice_of(api.chat(messages=asked, response_format={"type": "json_object"}, max_tokens=200).optional())
    if made["finish_reason"] == "stop":
        expect(isinstance(json.loads(made["message"]["content"]), dict), "no object")


@structure("response_format json_schema gives what the schema says")
def json_schema(api: Api) -> None:
    shown = {"name": "answer", "strict": True, "schema": SCHEMA}
    asked = [{"role": "user", "content": "Is 7 even?"}]
    form = {"type": "json_schema", "json_schema": shown}
    made = choice_of(api.chat(messages=asked, response_format=form, max_tokens=100).optional())
    if made["finish_reason"] == "stop":
        found = json.loads(made["message"]["content"])
        expect(set(found) == {"number", "even"}, f"fields {sorted(found)}")
        expect(type(found["number"]) is int and type(found["even"]) is bool, f"values {found}")


@tools("a named tool is called, with arguments in JSON")
def named(api: Api) -> None:
    made = choice_of(api.chat(messages=WEATHER, tools=[TOOL], tool_choice=NAMED, max_tokens=100).optional())
    check_calls(made["message"]["tool_calls"])
    expect(made["finish_reason"] in ("stop", "tool_calls"), f"finish_reason {made['finish_reason']}")


@tools("tool_choice required calls a tool")
def required(api: Api) -> None:
    made = choice_of(api.chat(messages=WEATHER, tools=[TOOL], tool_choice="required", max_tokens=200).optional())
    check_calls(made["message"]["tool_calls"])


def check_calls(calls: list[dict[str, Any]]) -> None:
    expect(len(calls) > 0, "no call")
    for call in calls:
        expect(call["type"] == "function" and call["id"], f"type or id of {call}")
        expect(call["function"]["name"] == "get_weather", f"called {call['function']['name']}")
        expect("city" in json.loads(call["function"]["arguments"]), f"arguments {call['function']['arguments']}")


@tools("tool_choice none calls no tool")
def none(api: Api) -> None:
    made = choice_of(api.chat(messages=WEATHER, tools=[TOOL], tool_choice="none").optional())
    expect(not made["message"].get("tool_calls"), "there are calls")


@tools("a streamed call comes in parts that make one")
def streamed(api: Api) -> None:
    asked = {"messages": WEATHER, "tools": [TOOL], "tool_choice": NAMED, "max_tokens": 100}
    api.chat(**asked).optional()
    check_calls([joined(api.stream_chat(**asked))])


def joined(stream: ApiStream) -> dict[str, Any]:
    made: dict[str, Any] = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
    for choice in stream.choices:
        for part in choice["delta"].get("tool_calls") or ():
            made["id"] = part.get("id") or made["id"]
            for name, value in (part.get("function") or {}).items():
                made["function"][name] += value or ""
    return made
