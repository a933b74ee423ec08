# SPDX-License-Identifier: Apache-2.0
"""Tool calls of real models that were trained to call, through HTTP and OpenAI's client, by a prefill and a decode
worker."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest
from served import launched

pytestmark = pytest.mark.long
NAMES = ("qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
CITY = {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 40}}, "required": ["city"],
    "additionalProperties": False,
}  # fmt: skip
NUMBER = {"type": "integer", "minimum": 0, "maximum": 1000}
SUM = {
    "type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"], "additionalProperties": False,
}  # fmt: skip
PARAMETERS = {"get_time": CITY, "add": SUM}
TOOLS: list[Any] = [
    {"type": "function", "function": {
        "name": "get_time", "description": "Get the current time in a city.", "parameters": CITY,
    }},
    {"type": "function", "function": {"name": "add", "description": "Add two whole numbers.", "parameters": SUM}},
]  # fmt: skip
Told = tuple[str, list[tuple[str, Any]], str | None]


@pytest.fixture(scope="module", params=NAMES)
def asks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Asking]":
    with launched(tmp_path_factory.mktemp("coder"), "--model", request.param) as served:
        url = f"http://127.0.0.1:{served.port}/v1"
        yield Asking(openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=600), request.param)


class Asking:
    """A client that asks everything whole and streamed, and compares."""

    def __init__(self, client: openai.OpenAI, name: str) -> None:
        self.client, self.name = client, name

    def __call__(self, text: str | list[Any], **more: Any) -> Told:
        """Return the content, the calls and the reason of a greedy answer."""
        messages: list[Any] = [{"role": "user", "content": text}] if isinstance(text, str) else text
        asked: dict[str, Any] = {
            "model": self.name, "messages": messages, "temperature": 0, "max_tokens": 90, "tools": TOOLS,
        } | more  # fmt: skip
        (choice,) = self.client.chat.completions.create(**asked).choices
        calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
        told = choice.message.content or "", calls, choice.finish_reason
        assert self.streamed(asked) == told
        for name, arguments in calls:
            assert name in PARAMETERS
            if choice.finish_reason == "tool_calls":
                assert isinstance(json.loads(arguments), dict)
        return told[0], [(name, json.loads(arguments)) for name, arguments in calls], told[2]

    def streamed(self, asked: dict[str, Any]) -> tuple[str, list[tuple[str, str]], str | None]:
        content, calls, reason = "", list[list[str]](), None
        for chunk in self.client.chat.completions.create(stream=True, **asked):
            (choice,) = chunk.choices
            content += choice.delta.content or ""
            for piece in choice.delta.tool_calls or ():
                if piece.function.name:
                    calls.append([piece.function.name, ""])
                calls[piece.index][1] += piece.function.arguments or ""
            reason = choice.finish_reason or reason
        return content, [(name, arguments) for name, arguments in calls], reason


TIME = "What time is it in Paris?"


def test_the_model_calls_by_itself(asks: Asking) -> None:
    for more in ({}, {"tool_choice": "auto"}):
        content, calls, reason = asks(TIME, **more)
        assert (calls, reason) == ([("get_time", {"city": "Paris"})], "tool_calls"), content


def test_two_questions_are_two_calls(asks: Asking) -> None:
    content, calls, reason = asks("What time is it in Paris, and what time is it in Rome? Call the tool for each city.")
    assert reason == "tool_calls" and {"city": "Paris"} in [arguments for _, arguments in calls], content
    assert {name for name, _ in calls} == {"get_time"}


def test_one_call_at_most(asks: Asking) -> None:
    _, calls, _ = asks("What time is it in Paris, and in Rome?", tool_choice="required", parallel_tool_calls=False)
    assert len(calls) == 1


def test_a_program_is_no_call(asks: Asking) -> None:
    """Neither with tools nor without."""
    for more in ({}, {"tool_choice": "none"}, {"tools": openai.NOT_GIVEN}):
        content, calls, reason = asks("Write a Python function that reverses a string. Show only the code.", **more)
        assert calls == [] and "def " in content and reason in ("stop", "length")
    content, calls, _ = asks("Write a JSON object with a name and an age, in a code block.", tools=openai.NOT_GIVEN)
    assert calls == [] and "{" in content


@pytest.mark.parametrize("text", [TIME, "Write a poem about the sea."])
def test_calls_that_are_asked_for_are_made(asks: Asking, text: str) -> None:
    named: Any = {"type": "function", "function": {"name": "add"}}
    for choice in ("required", named):
        # Without a bound of calls a small model may go on without end.
        content, calls, reason = asks(text, tool_choice=choice, parallel_tool_calls=text == TIME)
        assert reason == "tool_calls" and calls and not content
        for name, arguments in calls:
            jsonschema.validate(arguments, PARAMETERS[name])
        assert choice == "required" or [name for name, _ in calls] == ["add"]


def test_a_strict_tool_is_called_by_its_schema_or_not_at_all(asks: Asking) -> None:
    strict = [{"type": "function", "function": tool["function"] | {"strict": True}} for tool in TOOLS]
    _, calls, _ = asks(TIME, tools=strict)
    for name, arguments in calls:
        jsonschema.validate(arguments, PARAMETERS[name])


def test_the_answer_goes_on_behind_a_result(asks: Asking) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": '{"city": "Paris"}'}}
    messages = [
        {"role": "user", "content": TIME}, {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "10:47"},
    ]  # fmt: skip
    content, _, _ = asks(messages, tool_choice="none")
    assert "10:47" in content
