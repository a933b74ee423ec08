# SPDX-License-Identifier: Apache-2.0
"""Responses with calls and reasoning, whole and streamed, as the official client assembles them."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import jsonschema
import openai
import pytest
from saying_sites import Sites
from scripted_site import MODEL, ScriptedSite

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "noop"}},
]
ROME, OSLO = '{"city": "Rome"}', '{ "city":"Øslo" }'
CALLS = (
    f'<tool_call>\n{{"name": "weather", "arguments": {ROME}}}\n</tool_call>\n'
    f'<tool_call>\n{{"name": "weather", "arguments": {OSLO}}}\n</tool_call>'
)
THOUGHT = "<think>\nTwo cities.\n</think>\n\n"


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    with ExitStack() as stack:
        yield Sites(tmp_path_factory.mktemp("sites"), stack)


def client(served: ScriptedSite) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key="unused", max_retries=0)


def ask(served: ScriptedSite, stream: bool = False, **more: Any) -> Any:
    messages = [{"role": "user", "content": "hi"}]
    options = {"stream_options": {"include_usage": True}} if stream else {}
    return client(served).chat.completions.create(
        model=MODEL, messages=messages, stream=stream, **{"tools": TOOLS} | options | more,
    )  # fmt: skip


def thought_of(part: Any) -> str | None:
    """Return the reasoning of a message or a piece of one, which has it under two names."""
    assert getattr(part, "reasoning", None) == (thought := getattr(part, "reasoning_content", None))
    return thought


def in_short(answer: Any) -> list[dict[str, Any]]:
    """Return each choice of a whole response without random fields."""
    return [
        {
            "content": choice.message.content,
            "reasoning": thought_of(choice.message),
            "calls": [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()],
            "reason": choice.finish_reason,
            "logprobs": len(choice.logprobs.content) if choice.logprobs else None,
        }
        for choice in answer.choices
    ]


def gathered(chunks: Sequence[Any]) -> tuple[list[dict[str, Any]], Any]:
    """Return the same of a stream, merged as clients do, and its usage."""
    found: dict[int, dict[str, Any]] = defaultdict(lambda: {"content": None, "reasoning": None, "calls": [], "ids": []})
    for chunk in chunks:
        for choice in chunk.choices:
            one, delta = found[choice.index], choice.delta
            one["content"] = (one["content"] or "") + delta.content if delta.content else one["content"]
            thought = thought_of(delta)
            one["reasoning"] = (one["reasoning"] or "") + thought if thought else one["reasoning"]
            for call in delta.tool_calls or ():
                if call.index == len(one["calls"]):
                    assert call.type == "function" and call.id.startswith("call_") and call.function.arguments == ""
                    one["calls"].append((call.function.name, ""))
                    one["ids"].append(call.id)
                else:
                    assert call.id is call.type is call.function.name is None
                    name, text = one["calls"][call.index]
                    one["calls"][call.index] = (name, text + call.function.arguments)
            shown = len(choice.logprobs.content) if choice.logprobs else 0
            one["logprobs"] = one.get("logprobs", 0) + shown
            one["reason"] = choice.finish_reason
    for one in found.values():
        assert len(set(one["ids"])) == len(one.pop("ids"))
    return [found[index] for index in sorted(found)], chunks[-1].usage


def both(served: ScriptedSite, **more: Any) -> tuple[list[dict[str, Any]], Any]:
    """Return the response, which is the same whole and streamed (A8)."""
    whole = ask(served, logprobs=True, **more)
    streamed, usage = gathered(list(ask(served, stream=True, logprobs=True, **more)))
    for one in streamed:
        if one["content"] is None and not one["calls"] and one["reasoning"] is None:
            one["content"] = ""
    assert streamed == in_short(whole) and usage.model_dump() == whole.usage.model_dump()
    return streamed, whole.usage


def thought_tokens(served: ScriptedSite, marker: str = "</think>") -> int:
    """Return the number of the worker's tokens up to the end of reasoning."""
    end = served.tokenizer.token_id(marker)
    assert end is not None
    return served.workers[0].answer.index(end) + 1


def test_calls_behind_reasoning_and_text(sites: Sites) -> None:
    served = sites.saying("qwen", f"{THOUGHT}I look.\n{CALLS}")
    ((one,), usage) = both(served)
    assert one["reasoning"] == "Two cities." and one["content"] == "I look."
    assert one["calls"] == [("weather", ROME), ("weather", OSLO)] and one["reason"] == "tool_calls"
    assert usage.completion_tokens == len(served.workers[0].answer) + 1 == one["logprobs"]
    assert usage.completion_tokens_details.reasoning_tokens == thought_tokens(served)


def test_choices_are_read_each_by_itself(sites: Sites) -> None:
    """Choice c drops the first c tokens, so that choice 1 has no opening marker and thus no reasoning."""
    served = sites.saying("qwen", f"{THOUGHT}{CALLS}")
    (first, second), usage = both(served, n=2)
    assert first["reasoning"] == "Two cities." and first["content"] is None and first["reason"] == "tool_calls"
    assert second["reasoning"] is None and second["content"] == "\nTwo cities.\n</think>"
    assert second["calls"] == first["calls"]
    assert usage.completion_tokens_details.reasoning_tokens == thought_tokens(served), "the first choice's"


def test_llamas_calls(sites: Sites) -> None:
    text = f'{{"name": "weather", "parameters": {ROME}}}; {{"name": "noop", "parameters": {{}}}}'
    ((one,), usage) = both(sites.saying("llama", text))
    assert (one["content"], one["calls"], one["reason"]) == (None, [("weather", ROME), ("noop", "{}")], "tool_calls")
    assert usage.completion_tokens_details.reasoning_tokens == 0


def test_reasoning_that_the_prompt_has_opened(sites: Sites) -> None:
    ((one,), usage) = both(sites.saying("opening", "hm\n</think>\n\nIt rains."))
    assert (one["reasoning"], one["content"], one["reason"]) == ("hm", "It rains.", "stop")
    ((one,), _) = both(sites.saying("opening", "hm"), tools=openai.NOT_GIVEN)
    assert (one["reasoning"], one["content"]) == ("hm", None)


def test_reasoning_before_a_structure(sites: Sites) -> None:
    """Reasoning may come first, unless the client wrote the grammar."""
    more = {"tools": openai.NOT_GIVEN, "response_format": {"type": "json_object"}}
    served = sites.saying("opening", 'hm</think>{"a": 1}')
    ((one,), _) = both(served, **more)
    assert (one["reasoning"], one["content"]) == ("hm", '{"a": 1}')
    more = {"tools": openai.NOT_GIVEN, "extra_body": {"structured_outputs": {"grammar": 'start: "{}"'}}}
    ((one,), usage) = both(sites.saying("opening", "{}"), **more)
    assert (one["reasoning"], one["content"]) == (None, "{}")
    assert usage.completion_tokens_details.reasoning_tokens == 0


@pytest.mark.parametrize(("begun", "reasoning"), [("<think>so", " hm"), ("<think>so</think>", None), ("so", None)])
def test_a_message_to_be_continued_may_have_begun_it(sites: Sites, begun: str, reasoning: str | None) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": begun}]
    more = {"continue_final_message": True, "add_generation_prompt": False}
    answer = sites.saying("opening", " hm").ask("POST", "/v1/chat/completions", {"messages": messages} | more)
    (choice,) = answer.json["choices"]
    found = choice["message"].get("reasoning_content"), choice["message"]["content"]
    assert found == ((reasoning.strip(), None) if reasoning else (None, " hm"))


def test_the_official_helper_puts_a_stream_together(sites: Sites) -> None:
    """The helper parses the arguments of strict tools, which it asks for."""
    strict = {"type": "function", "function": TOOLS[0]["function"] | {"strict": True}}
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    made = client(sites.saying("qwen", f"{THOUGHT}I look.\n{CALLS}"))
    with made.chat.completions.stream(model=MODEL, messages=messages, tools=[strict]) as stream:
        message = stream.get_final_completion().choices[0].message
    assert [call.function.parsed_arguments for call in message.tool_calls or ()] == [{"city": "Rome"}, {"city": "Øslo"}]
    assert message.content == "I look."


def test_reasoning_that_cannot_be_counted_is_not(sites: Sites) -> None:
    served = sites.saying("opening", "hm")
    for marker in ("</th", "ink>ok"):  # spelled by other tokens than its own
        served.workers[0].answer += served.tokenizer.encode(marker, False)
    ((one,), usage) = both(served)
    assert (one["reasoning"], one["content"]) == ("hm", "ok")
    assert usage.completion_tokens_details.reasoning_tokens is None


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_a_call_that_is_cut_is_shown_as_far_as_it_came(sites: Sites, cut: int) -> None:
    served = sites.saying("qwen", CALLS)
    begin = len(served.tokenizer.encode(CALLS[: CALLS.index("}}") - 1], False))
    ((one,), usage) = both(served, max_tokens=begin + cut)
    assert one["reason"] == "length" and usage.completion_tokens == begin + cut
    assert CALLS.split("\n<", 1)[1].removeprefix("/tool_call>\n").startswith(one["content"] or ""), "not a call yet"
    for (name, told), whole in zip(one["calls"], (ROME, OSLO), strict=False):
        assert name == "weather" and whole.startswith(told)


def test_what_looks_like_a_call_and_is_none_is_content(sites: Sites) -> None:
    for text in ('<tool_call>{"name": "rm", "arguments": {}}</tool_call>', "<tool_call> is a tag", "a <tool_"):
        ((one,), _) = both(sites.saying("qwen", text))
        assert (one["content"], one["calls"], one["reason"]) == (text, [], "stop")


def test_a_stop_string_ends_a_call_where_it_stands(sites: Sites) -> None:
    ((one,), _) = both(sites.saying("qwen", CALLS), stop='Rome"')
    assert one["calls"] == [("weather", '{"city": "')] and one["reason"] == "stop"


def test_without_tools_calls_are_text(sites: Sites) -> None:
    for more in ({"tools": openai.NOT_GIVEN}, {"tool_choice": "none"}):
        ((one,), _) = both(sites.saying("qwen", CALLS), **more)
        assert (one["content"], one["calls"], one["reason"]) == (CALLS, [], "stop")


def test_every_piece_has_its_ids(sites: Sites) -> None:
    """Ids are complete also where a token's text is held back or split into several chunks."""
    served = sites.saying("qwen", f"{THOUGHT}So:  {CALLS}")
    chunks = list(ask(served, stream=True, extra_body={"return_token_ids": True}))
    ids = [token for chunk in chunks for choice in chunk.choices for token in getattr(choice, "token_ids", ())]
    assert ids[:-1] == served.workers[0].answer


def test_answers_are_as_the_document_says(sites: Sites) -> None:
    served = sites.saying("qwen", f"{THOUGHT}{CALLS}")
    document = served.ask("GET", "/openapi.json").json
    content = document["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    asked = {"tools": TOOLS, "logprobs": True, "return_token_ids": True}
    components = {"components": document["components"]}
    whole = content["application/json"]["schema"] | components
    jsonschema.Draft202012Validator(whole).validate(served.chat(**asked).json)
    chunk = content["text/event-stream"]["itemSchema"]["else"]["properties"]["data"]["contentSchema"] | components
    options = {"include_usage": True, "continuous_usage_stats": True}
    *events, done = served.chat(**asked, stream=True, stream_options=options).events
    checked = jsonschema.Draft202012Validator(chunk)
    assert done == "[DONE]"
    for event in events:
        checked.validate(event)
    counts = [event["usage"]["completion_tokens_details"]["reasoning_tokens"] for event in events if event["usage"]]
    assert counts == sorted(counts) and counts[-1] == thought_tokens(served)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        (
            {"tools": [{"function": {"name": "a", "parameters": {"type": "array"}}}]},
            "tools[0].function.parameters.type",
        ),
        ({"response_format": {"type": "json_object"}, "tool_choice": "required"}, "response_format"),
        (
            {"tool_choice": "required", "tools": [{"function": {"name": "a", "parameters": {"$ref": "#/no"}}}]},
            "tools[0].function.parameters",
        ),
    ],
)
def test_mistakes_are_the_clients_own_errors(sites: Sites, more: dict[str, Any], param: str) -> None:  # F3
    with pytest.raises(openai.BadRequestError) as caught:
        ask(sites.saying("qwen", "x"), **more)
    assert caught.value.param == param


def test_grammars_reach_the_worker(sites: Sites) -> None:  # D13
    served = sites.saying("qwen", CALLS)
    strict = [{"type": "function", "function": TOOLS[0]["function"] | {"strict": True}}]
    free: list[dict[str, Any]] = [{}, {"tool_choice": "auto"}, {"tool_choice": "none", "tools": strict}]
    kept: list[dict[str, Any]] = [
        {"tool_choice": "required"}, {"tool_choice": {"type": "function", "function": {"name": "noop"}}},
        {"tools": strict}, {"parallel_tool_calls": False},
    ]  # fmt: skip
    while not served.workers[0].submits.empty():
        served.workers[0].submits.get()
    for more in (*free, *kept):
        assert ask(served, **more).choices
        grammar = served.workers[0].submits.get(timeout=60).sampling["grammar"]
        assert (grammar is not None) is (more in kept), more


def test_schemas_of_tools_are_relaxed_unless_they_are_strict(sites: Sites) -> None:
    """Libraries ask for an object by a forced call."""
    served = sites.saying("qwen", CALLS)
    cities = {"type": "object", "properties": {"cities": {"type": "array", "uniqueItems": True}}}
    function: dict[str, Any] = {"name": "weather", "parameters": cities}
    while not served.workers[0].submits.empty():
        served.workers[0].submits.get()
    asked: dict[str, Any] = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    assert ask(served, **asked).choices[0].finish_reason == "tool_calls"
    grammar = served.workers[0].submits.get(timeout=60).sampling["grammar"]
    assert '"cities": {"type": "array"}' in grammar and "weather" in grammar
    asked["tools"] = [*TOOLS[1:], {"type": "function", "function": function | {"strict": True}}]
    with pytest.raises(openai.BadRequestError) as caught:
        ask(served, **asked)
    assert caught.value.param == "tools[1].function.parameters"
    assert "strict is true, and no grammar holds uniqueItems at #/properties/cities" in str(caught.value)


def test_ids_are_in_the_form_that_the_templates_want(sites: Sites) -> None:
    """Mistral's insist on nine letters and digits."""
    mistral = f'[TOOL_CALLS] [{{"name": "weather", "arguments": {ROME}}}]'
    served = sites.saying("mistral", mistral)
    whole = ask(served).choices[0].message.tool_calls[0]
    choices = [choice for chunk in ask(served, stream=True) for choice in chunk.choices]
    deltas = [call for choice in choices for call in choice.delta.tool_calls or ()]
    for call in (whole, deltas[0]):
        assert call.function.name == "weather" and len(call.id) == 9 and call.id.isalnum()
    assert whole.function.arguments == ROME == "".join(call.function.arguments for call in deltas)


def test_messages_of_the_harmony_format(sites: Sites) -> None:
    """Channels are told apart without tools too."""
    thought = "<|channel|>analysis<|message|>Two cities.<|end|><|start|>assistant"
    called = f"{thought}<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{ROME}"
    ((one,), usage) = both(sites.saying("harmony", called))
    assert (one["reasoning"], one["calls"], one["reason"]) == ("Two cities.", [("weather", ROME)], "tool_calls")
    assert usage.completion_tokens_details.reasoning_tokens == thought_tokens(sites.made["harmony"], "<|end|>")
    for more in ({}, {"tools": openai.NOT_GIVEN}):
        ((one,), _) = both(sites.saying("harmony", f"{thought}<|channel|>final<|message|>It rains."), **more)
        assert (one["reasoning"], one["content"], one["reason"]) == ("Two cities.", "It rains.", "stop")


def test_the_round_trip(sites: Sites) -> None:
    """A returned call goes back into the prompt, with its function's result."""
    served = sites.saying("qwen", CALLS)
    message = ask(served).choices[0].message
    messages: list[Any] = [{"role": "user", "content": "hi"}, message.model_dump(exclude_none=True)]
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "7°"} for call in message.tool_calls]
    answer = served.ask("POST", "/tokenize", {"messages": messages, "tools": TOOLS})
    prompt = served.tokenizer.decode(answer.json["tokens"], skip_special_tokens=False)
    assert '{"name": "weather", "arguments": {"city": "Rome"}}' in prompt and prompt.count("7°") == 2
    assert json.loads(message.tool_calls[1].function.arguments) == {"city": "Øslo"}
