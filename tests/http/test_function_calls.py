# SPDX-License-Identifier: Apache-2.0
"""Requests with `functions`, as chats had them before tools, and their answers."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from saying_sites import Sites
from scripted_site import HttpAnswer, ScriptedSite

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTIONS: list[Any] = [{"name": "weather", "description": "of a city", "parameters": PARAMETERS}, {"name": "noop"}]
TOOLS = [{"type": "function", "function": function} for function in FUNCTIONS]
ROME = '{"city": "Rome"}'
THOUGHT = "<think>\nTwo cities.\n</think>\n\n"


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    with ExitStack() as stack:
        yield Sites(tmp_path_factory.mktemp("sites"), stack)


def legacy(served: ScriptedSite, **more: Any) -> HttpAnswer:
    asked = {"messages": [{"role": "user", "content": "hi"}], "functions": FUNCTIONS} | more
    return served.ask("POST", "/v1/chat/completions", asked)


ONE_CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ROME}}}\n</tool_call>'


def test_functions_are_answered_in_their_own_form(sites: Sites) -> None:
    served = sites.saying("qwen", f"{THOUGHT}I look.\n{ONE_CALL}")
    (choice,) = legacy(served).json["choices"]
    assert choice["finish_reason"] == "function_call" and "tool_calls" not in choice["message"]
    assert choice["message"]["function_call"] == {"name": "weather", "arguments": ROME}
    assert choice["message"]["content"] == "I look." and choice["message"]["reasoning"] == "Two cities."
    *events, _ = legacy(served, stream=True).events
    deltas = [one["delta"]["function_call"] for event in events for one in event["choices"]
              if "function_call" in one["delta"]]  # fmt: skip
    assert deltas[0] == {"name": "weather", "arguments": ""} and all("name" not in delta for delta in deltas[1:])
    assert "".join(delta["arguments"] for delta in deltas) == ROME
    assert events[-1]["choices"][0]["finish_reason"] == "function_call"
    (choice,) = legacy(sites.saying("qwen", "Dry."), function_call="auto").json["choices"]
    assert (
        choice["message"]["content"] == "Dry."
        and "function_call" not in choice["message"]
        and choice["finish_reason"] == "stop"
    )


@pytest.mark.parametrize(
    ("choice", "begin"), [("auto", "weather|noop"), ({"name": "noop"}, "noop"), ("none", None), (None, "weather|noop")]
)
def test_the_choice_among_functions_is_enforced(sites: Sites, choice: Any, begin: str | None) -> None:
    """One call at most can stand in such an answer."""
    served = sites.saying("qwen", "x")
    while not served.workers[0].submits.empty():
        served.workers[0].submits.get()
    assert legacy(served, function_call=choice).status == 200
    submit = served.workers[0].submits.get(timeout=60)
    grammar, prompt = submit.sampling["grammar"], served.tokenizer.decode(submit.prompt, skip_special_tokens=False)
    assert (grammar is None) is (begin is None) and ("weather" in prompt) is (begin is not None)
    assert begin is None or all((name in grammar) is (name in begin.split("|")) for name in ("weather", "noop"))


@pytest.mark.parametrize("template", ["qwen", "mistral"])
def test_calls_and_results_of_functions_go_back_as_those_of_tools(sites: Sites, template: str) -> None:
    called = {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": ROME}}
    result = {"role": "function", "name": "weather", "content": "7 degrees"}
    messages: list[Any] = [{"role": "user", "content": "hi"}, called, result, {"role": "user", "content": "and?"}]
    calls = [{"id": "call00001", "type": "function", "function": called["function_call"]}]
    newer = [messages[0], {"role": "assistant", "tool_calls": calls},
             {"role": "tool", "tool_call_id": "call00001", "content": "7 degrees"}, messages[3]]  # fmt: skip
    served = sites.saying(template, "x")
    ids = [served.ask("POST", "/tokenize", {"messages": some}).json["tokens"] for some in (messages, newer)]
    assert (
        ids[0] == ids[1] and ROME in served.tokenizer.decode(ids[0]) and "7 degrees" in served.tokenizer.decode(ids[0])
    )


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": TOOLS}, "functions"),
        ({"tool_choice": "required"}, "functions"),
        ({"function_call": {"name": "other"}}, "function_call"),
        ({"functions": [], "function_call": {"name": "weather"}}, "function_call"),
        ({"function_call": "required"}, "function_call"),
        ({"function_call": {}}, "function_call.name"),
        ({"functions": [{"name": "a"}, {"name": "a"}]}, "functions[1].name"),
        ({"functions": [{"name": "a", "parameters": {"$ref": "#/no"}, "strict": True}],
          "function_call": {"name": "a"}}, "functions[0].parameters"),
        ({"messages": [{"role": "function", "content": "7"}]}, "messages[0].name"),
        ({"messages": [{"role": "user", "content": "", "function_call": {"name": "a"}}]}, "messages[0].function_call"),
        ({"messages": [{"role": "assistant", "function_call": {"arguments": "{}"}}]}, "messages[0].function_call.name"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_functions_is_named(sites: Sites, more: dict[str, Any], param: str) -> None:
    answer = legacy(sites.saying("qwen", "x"), **more)
    assert answer.status == 400 and answer.json["error"]["param"] == param


def test_a_choice_without_functions_has_no_effect(sites: Sites) -> None:
    answer = legacy(sites.saying("qwen", "x"), functions=None, function_call="auto")
    assert answer.headers["x-pontil-ignored"] == "function_call"
