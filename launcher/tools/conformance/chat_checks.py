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


def choice_of(completion: dict[str, Any]) -> dict[str, Any]:
    choice: dict[str, Any] = completion["choices"][0]
    return choice


@chats("an answer has id, object, created, model, a message and usage")
def shape(api: Api) -> None:
    completion = api.chat().good()
    expect(completion["object"] == "chat.completion" and isinstance(completion["created"], int), "object or created")
    message = choice_of(completion)["message"]
    expect(message["role"] == "assistant" and isinstance(message["content"], str), f"message {message}")
    expect(choice_of(completion)["finish_reason"] in ("stop", "length"), "finish_reason")
    check_usage(completion["usage"])


@chats("max_completion_tokens bounds an answer")
def budget(api: Api) -> None:
    completion = api.chat(max_tokens=None, max_completion_tokens=3).good()
    expect(completion["usage"]["completion_tokens"] <= 3, f"{completion['usage']['completion_tokens']} tokens")


@chats("content may be a list of text parts")
def parts(api: Api) -> None:
    content = [{"type": "text", "text": "Count to ten."}]
    completion = api.chat(messages=[{"role": "user", "content": content}]).good()
    expect(
        choice_of(completion)["message"]["content"] == choice_of(api.chat().good())["message"]["content"],
        "another answer",
    )


@chats("system and developer messages are taken")
def system(api: Api) -> None:
    for role in ("system", "developer"):
        messages = [{"role": role, "content": "Be brief."}, {"role": "user", "content": "Hello"}]
        expect(choice_of(api.chat(messages=messages).optional())["message"]["role"] == "assistant", f"role {role}")


@chats("earlier answers may be sent back, with content null and tool calls")
def sent_back(api: Api) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    messages = [
        *WEATHER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Rain, 12 degrees."},
    ]
    api.chat(messages=messages, tools=[TOOL]).optional()


@chats("n gives so many messages")
def many(api: Api) -> None:
    completion = api.chat(n=2, temperature=1, seed=5).good()
    expect([choice["index"] for choice in completion["choices"]] == [0, 1], "indices are not 0 and 1")


@chats("logprobs with top_logprobs describe each token")
def logprobs(api: Api) -> None:
    choice = choice_of(api.chat(logprobs=True, top_logprobs=2).optional())
    tokens = choice["logprobs"]["content"]
    expect(tokens and all(len(token["top_logprobs"]) == 2 for token in tokens), "not two most likely tokens each")
    expect(all({"token", "logprob", "bytes"} <= set(token) for token in tokens), "token, logprob or bytes are missing")
    token_bytes = b"".join(bytes(token["bytes"] or ()) for token in tokens)
    expect(
        token_bytes.decode(errors="replace").startswith(choice["message"]["content"]),
        "the bytes do not make the content",
    )


@chats("user and metadata change nothing")
def harmless(api: Api) -> None:
    plain = choice_of(api.chat().good())["message"]["content"]
    content = choice_of(api.chat(user="somebody", metadata={"team": "blue"}).optional())["message"]["content"]
    expect(content == plain, "another answer")


@streams("the first event brings the role, and the contents make the same answer")
def stream(api: Api) -> None:
    api_stream = api.stream_chat()
    expect(api_stream.events[0]["object"] == "chat.completion.chunk", "object")
    expect(
        api_stream.choices[0]["delta"].get("role") == "assistant",
        f"the first delta is {api_stream.choices[0]['delta']}",
    )
    expect(
        api_stream.text == choice_of(api.chat().good())["message"]["content"], "another content than without a stream"
    )
    expect(api_stream.done, "no [DONE]")


@streams("all events of a stream have one id")
def one_id(api: Api) -> None:
    expect(len({event["id"] for event in api.stream_chat().events}) == 1, "several ids")


@streams("include_usage adds one last event with usage and no choices")
def stream_usage(api: Api) -> None:
    *earlier_events, last = api.stream_chat(stream_options={"include_usage": True}).events
    expect(last["choices"] == [], "the last event has choices")
    expect(not any(event.get("usage") for event in earlier_events), "usage in an earlier event")
    check_usage(last["usage"])


@structure("response_format json_object gives JSON")
def json_object(api: Api) -> None:
    messages = [{"role": "user", "content": "Give me a JSON object with the fields name and age."}]
    choice = choice_of(api.chat(messages=messages, response_format={"type": "json_object"}, max_tokens=200).optional())
    if choice["finish_reason"] == "stop":
        expect(isinstance(json.loads(choice["message"]["content"]), dict), "no object")


@structure("response_format json_schema gives what the schema says")
def json_schema(api: Api) -> None:
    named_schema = {"name": "answer", "strict": True, "schema": SCHEMA}
    messages = [{"role": "user", "content": "Is 7 even?"}]
    form = {"type": "json_schema", "json_schema": named_schema}
    choice = choice_of(api.chat(messages=messages, response_format=form, max_tokens=100).optional())
    if choice["finish_reason"] == "stop":
        answer = json.loads(choice["message"]["content"])
        expect(set(answer) == {"number", "even"}, f"fields {sorted(answer)}")
        expect(type(answer["number"]) is int and type(answer["even"]) is bool, f"values {answer}")


@tools("a named tool is called, with arguments in JSON")
def named(api: Api) -> None:
    choice = choice_of(api.chat(messages=WEATHER, tools=[TOOL], tool_choice=NAMED, max_tokens=100).optional())
    check_calls(choice["message"]["tool_calls"])
    expect(choice["finish_reason"] in ("stop", "tool_calls"), f"finish_reason {choice['finish_reason']}")


@tools("tool_choice required calls a tool")
def required(api: Api) -> None:
    choice = choice_of(api.chat(messages=WEATHER, tools=[TOOL], tool_choice="required", max_tokens=200).optional())
    check_calls(choice["message"]["tool_calls"])


def check_calls(calls: list[dict[str, Any]]) -> None:
    expect(len(calls) > 0, "no call")
    for call in calls:
        expect(call["type"] == "function" and call["id"], f"type or id of {call}")
        expect(call["function"]["name"] == "get_weather", f"called {call['function']['name']}")
        expect("city" in json.loads(call["function"]["arguments"]), f"arguments {call['function']['arguments']}")


@tools("tool_choice none calls no tool")
def none(api: Api) -> None:
    choice = choice_of(api.chat(messages=WEATHER, tools=[TOOL], tool_choice="none").optional())
    expect(not choice["message"].get("tool_calls"), "there are calls")


@tools("a streamed call comes in parts that make one")
def streamed(api: Api) -> None:
    request = {"messages": WEATHER, "tools": [TOOL], "tool_choice": NAMED, "max_tokens": 100}
    api.chat(**request).optional()
    check_calls([joined(api.stream_chat(**request))])


def joined(stream: ApiStream) -> dict[str, Any]:
    call: dict[str, Any] = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
    for choice in stream.choices:
        for part in choice["delta"].get("tool_calls") or ():
            call["id"] = part.get("id") or call["id"]
            for name, value in (part.get("function") or {}).items():
                call["function"][name] += value or ""
    return call
