# SPDX-License-Identifier: Apache-2.0
"""A response's request becomes the request of a chat."""

import time
from pathlib import Path
from typing import Any

import pytest
from api_table import responses_table
from hypothesis import given
from hypothesis import strategies as st

from pontil.http.openai.chat.request import read_chat
from pontil.http.openai.responses.request import RESPONSES, ResponsesRequest, messages_of, read_responses
from pontil.http.schema.reader import IgnoredFields
from pontil.runtime.errors import RequestError

VOCABULARY = 1000
ROOT = Path(__file__).resolve().parents[4]
WEATHER = {"name": "weather", "description": "of a city", "parameters": {"type": "object"}, "strict": True}


def read(ignored: IgnoredFields | None = None, **fields: Any) -> ResponsesRequest:
    return read_responses({"input": "hi"} | fields, VOCABULARY, ignored)


def messages(*items: Any, instructions: str | None = None) -> list[dict[str, Any]]:
    request = read(input=list(items), instructions=instructions)
    return list(request.with_history(request.items).prompt.messages)


def test_it_is_the_same_chat() -> None:
    """Everything that a chat has too is read in the same way."""
    same: dict[str, Any] = {
        "model": "m", "temperature": 0.5, "top_p": 0.5, "seed": 3, "stop": "x", "user": "u", "cache_salt": "s",
        "chat_template_kwargs": {"a": 1}, "parallel_tool_calls": False, "top_k": 5,
    }  # fmt: skip
    response = read(
        instructions="be brief", max_output_tokens=5, tools=[{"type": "function"} | WEATHER],
        tool_choice={"type": "function", "name": "weather"}, stream=True, **same,
    )  # fmt: skip
    chat = read_chat(
        {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
         "max_tokens": 5, "tools": [{"type": "function", "function": WEATHER}], "stream": True,
         "stream_options": {"include_usage": True},
         "tool_choice": {"type": "function", "function": {"name": "weather"}}} | same, VOCABULARY,
    )  # fmt: skip
    made = response.with_history(response.items)
    for part in ("model", "prompt", "delivery", "handling"):
        assert getattr(made, part) == getattr(chat, part), part
    assert made.sampling.max_tokens_name == "max_output_tokens"
    assert made.sampling.fitted(5) == chat.sampling.fitted(5)


def test_a_schema_becomes_the_same_grammar() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    described = {"name": "x", "schema": schema, "strict": True}
    chat = read_chat(
        {"messages": [{"role": "user", "content": "hi"}],
         "response_format": {"type": "json_schema", "json_schema": described}}, VOCABULARY,
    )  # fmt: skip
    response = read(text={"format": {"type": "json_schema"} | described, "verbosity": "low"})
    mine, other = response.chat.sampling.structure, chat.sampling.structure
    assert mine is not None and other is not None and mine.grammar == other.grammar
    assert read(text={"format": {"type": "json_object"}}).chat.sampling.structure is not None
    assert read(text={"format": {"type": "text"}}).chat.sampling.structure is None
    assert response.echoed["text"]["format"]["schema"] == schema


def test_what_the_assistant_did_in_one_go_is_one_message() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Rome"}'}
    made = messages(
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "phase": None,
         "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}]},
        call, call | {"call_id": "c2", "arguments": "cut {"},
        {"type": "function_call_output", "call_id": "c1", "output": "7°"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "8°"}]},
        {"role": "assistant", "content": "Warm."},
        {"role": "assistant", "content": "Very."},
    )  # fmt: skip
    assert made[0] == {"role": "user", "content": "ab"}
    assert made[1] == {
        "role": "assistant", "reasoning_content": "hm", "content": "I look.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}},
            {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": {}}},
        ],
    }  # fmt: skip
    assert made[2:4] == [{"role": "tool", "tool_call_id": "c1", "content": "7°"},
                         {"role": "tool", "tool_call_id": "c2", "content": "8°"}]  # fmt: skip
    assert made[4:] == [{"role": "assistant", "content": "Warm."}, {"role": "assistant", "content": "Very."}]


def test_instructions_and_the_systems_words_are_one_message() -> None:
    """Many templates take a single system message."""
    made = messages({"role": "developer", "content": "b"}, {"role": "user", "content": "c"}, instructions="a")
    assert made == [{"role": "system", "content": "a\n\nb"}, {"role": "user", "content": "c"}]
    assert messages({"role": "developer", "content": "b"})[0] == {"role": "developer", "content": "b"}
    later = messages({"role": "user", "content": "c"}, {"role": "system", "content": "d"}, instructions="a")
    assert [one["role"] for one in later] == ["system", "user", "system"]


def test_a_conversation_is_read_in_a_time_that_grows_as_it_does() -> None:
    """Joined one by one, the system's texts would be copied for each item: 64 times as long for eight times as many."""

    def seconds(items: int) -> float:
        system = {"type": "message", "role": "system", "content": [{"text": "x" * 500}]}
        begun = time.process_time()
        (message,) = messages_of("be brief", [system] * items)
        assert len(message["content"]) == len("be brief") + 502 * items
        return time.process_time() - begun

    seconds(100)
    few, many = (min(seconds(items) for _ in range(3)) for items in (1000, 8000))
    assert many < 24 * max(few, 1e-4)


def test_reasoning_alone_is_a_message_and_none_is_none() -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    assert messages(thought) == [{"role": "assistant", "reasoning_content": "hm", "content": ""}]
    empty = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
    assert messages(empty, {"role": "user", "content": "x"}) == [{"role": "user", "content": "x"}]


def test_what_changes_nothing_is_taken() -> None:
    """Fields that clients send by themselves."""
    read(
        service_tier="auto", safety_identifier="x", prompt_cache_key="k", prompt_cache_retention="24h",
        max_tool_calls=3, truncation="auto", reasoning={"effort": "low", "summary": "auto"},
        include=["reasoning.encrypted_content"], background=False, metadata={"a": "b"}, stream_options=None,
        conversation=None, user="me",
        tools=[], text={},
    )  # fmt: skip


def test_kinds_of_tools_that_other_servers_run_are_left_out_and_named() -> None:
    ignored = IgnoredFields()
    request = read(
        ignored,
        tools=[{"type": "web_search", "external_web_access": False}, {"type": "function"} | WEATHER, {"type": "shell"}],
        input=[{"type": "web_search_call", "id": "ws_1", "status": "completed"}, {"role": "user", "content": "hi"}],
    )
    assert [tool.name for tool in request.chat.prompt.tools.tools] == ["weather"]
    assert [tool["name"] for tool in request.echoed["tools"]] == ["weather"]
    assert [item["type"] for item in request.items] == ["message"]
    assert ignored.headers["x-pontil-ignored"] == "input[].web_search_call, tools[].web_search, tools[].shell"
    for fields, param in (
        ({"tools": [{"type": "shell"}]}, "tools[0].type"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
    ):
        with pytest.raises(RequestError) as caught:
            read(IgnoredFields(strict=True), **fields)
        assert caught.value.param == param


PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "edits files",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: begin end"},
}
SPACE = {"type": "namespace", "name": "files", "description": "of files", "tools": [{"type": "function"} | WEATHER]}


def test_namespaces_and_custom_tools_are_functions() -> None:
    ignored = IgnoredFields()
    request = read(ignored, tools=[PATCH, SPACE], tool_choice={"type": "custom", "name": "apply_patch"})
    patch, weather = (tool["function"] for tool in request.chat.prompt.tools.shown)
    assert (patch["name"], weather["name"]) == ("apply_patch", "files.weather")
    assert weather == WEATHER | {"name": "files.weather"} and "start: begin end" in str(patch["parameters"])
    assert request.chat.prompt.tools.choice.name == "apply_patch" and request.echoed["tools"] == [PATCH, SPACE]
    assert ignored.headers["x-pontil-ignored"] == "tools[].format"


def test_their_calls_are_calls_of_these_functions() -> None:
    made = messages(
        {"role": "user", "content": "x"},
        {
            "type": "custom_tool_call",
            "call_id": "c1",
            "name": "apply_patch",
            "input": "*** Begin",
            "status": "completed",
        },
        {"type": "function_call", "call_id": "c2", "name": "weather", "namespace": "files", "arguments": "{}"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
    )
    functions = [call["function"] for call in made[1]["tool_calls"]]
    assert functions == [
        {"name": "apply_patch", "arguments": {"input": "*** Begin"}},
        {"name": "files.weather", "arguments": {}},
    ]
    assert made[2] == {"role": "tool", "tool_call_id": "c1", "content": "done"}


TOOL = {"type": "function", "name": "a"}
AMONG = {"type": "allowed_tools", "mode": "required", "tools": [TOOL]}
IMAGE = {"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"tools": [{"name": "a"}]}, "tools[0].type"),
        ({"tools": [{"type": "custom"}]}, "tools[0].name"),
        ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name"),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [{"name": "a"}, {"name": "a"}]}]},
            "tools[0].tools[1].name",
        ),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a"}, {"type": "function", "name": "a"}]}, "tools[1].name"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "function", "name": "b"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": 5}}}, "text.format.schema"),
        ({"input": [IMAGE]}, "input[0].content[0].image_url"),
        ({"input": [{"type": "computer_call", "id": "cu_1"}]}, "input[0].type"),
        ({"input": [{"type": "custom_tool_call", "call_id": "x", "name": "f"}]}, "input[0].input"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "function_call", "call_id": "x", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "call_id": "x"}]}, "input[0].output"),
        ({"input": ["hi"]}, "input[0]"),
        ({"input": 5}, "input"),
        ({"input": None}, "input"),
        ({"messages": []}, "messages"),
        ({"n": 2}, "n"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"include": [1]}, "include"),
        ({"truncation": "some"}, "truncation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"user": "x" * 513}, "user"),
        ({"tools": [TOOL | {"description": "x" * (1 << 20)}], "tool_choice": "none"}, "tools"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"stream": False, "stream_options": {}}, "stream_options"),
        ({"max_outputtokens": 5}, "max_outputtokens"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"chat_template": "x"}, "chat_template"),
        ({"guided_json": {}}, "guided_json"),
        ({"stop_sequences": ["x"]}, "stop_sequences"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice.tools"),
        ({"tools": [TOOL], "tool_choice": AMONG | {"tools": [TOOL | {"name": "b"}]}}, "tool_choice"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str) -> None:  # F3
    with pytest.raises(RequestError) as caught:
        read(**fields)
    assert caught.value.param == param and caught.value.status == 400 and param in str(caught.value)


def test_what_has_no_effect_is_named_and_refused_by_a_strict_server() -> None:  # F3
    fields: dict[str, Any] = {
        "user": "me", "safety_identifier": "x", "reasoning": {"summary": "auto"}, "odd": 1, "max_tool_calls": 2,
        "include": ["reasoning.encrypted_content"], "tools": [TOOL | {"cache_control": {}}],
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "x", "odd": 1}], "odd": 1}],
    }  # fmt: skip
    ignored = IgnoredFields()
    read(ignored, **fields)
    assert set(ignored.names) == {
        "user", "safety_identifier", "reasoning.summary", "odd", "max_tool_calls", "include", "tools[].cache_control",
        "input[].content[].odd", "input[].odd",
    }  # fmt: skip
    for name in fields.keys() - {"user", "max_tool_calls"}:
        with pytest.raises(RequestError) as caught:
            read(IgnoredFields(strict=True), **{name: fields[name]})
        assert caught.value.param is not None and caught.value.param.startswith(name)


def test_items_of_an_answer_come_back_as_they_were_sent() -> None:
    """Even to a strict server, and none of their members is called ignored."""
    ignored = IgnoredFields(strict=True)
    text = {"type": "output_text", "text": "a", "annotations": [], "logprobs": []}
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "status": "completed", "encrypted_content": None,
               "content": [{"type": "reasoning_text", "text": "b"}]}  # fmt: skip
    call = {"type": "function_call", "id": "fc_1", "status": "completed", "call_id": "c", "name": "f", "arguments": ""}
    said = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [text]}
    read(ignored, input=[thought, said, call, {"type": "function_call_output", "call_id": "c", "output": "d"}])
    assert not ignored.names


def test_variables_of_the_template_have_their_own_names_and_places() -> None:
    prompt = read(reasoning={"effort": "low"}, text={"verbosity": "high"}).chat.prompt
    assert prompt.options == {"reasoning_effort": "low", "verbosity": "high"}
    assert prompt.places == {"reasoning_effort": "reasoning.effort", "verbosity": "text.verbosity"}
    ignored = IgnoredFields()
    twice = read(ignored, reasoning={"effort": "low"}, chat_template_kwargs={"reasoning_effort": "high"}).chat.prompt
    assert twice.options == {} and list(ignored.names) == ["reasoning.effort"]


def test_a_choice_among_some_of_the_tools() -> None:
    tools = read(tools=[TOOL, TOOL | {"name": "b"}], tool_choice=AMONG).chat.prompt.tools
    assert list(tools.functions) == ["a"] and tools.choice.mode == "required"


def test_an_empty_input_is_refused_once_the_history_is_known() -> None:
    request = read(input=[])
    with pytest.raises(RequestError, match="input is empty"):
        request.with_history([])
    assert request.with_history(read().items).prompt.messages


def test_the_page_shows_the_parameters_as_declared() -> None:  # F2, F3
    page = (ROOT / "docs" / "guide" / "responses.md").read_text().splitlines()
    begin = page.index(responses_table()[0])
    shown = page[begin : page.index("", begin)]
    assert shown == responses_table(), "python tests/support/checks/api_table.py prints the table"


def test_each_parameter_is_declared_once() -> None:
    names = [one.name for one in RESPONSES]
    assert len(set(names)) == len(names)


TEXTS = st.one_of(st.none(), st.text(max_size=8), st.integers(), st.lists(st.text(max_size=3), max_size=2))
KINDS = st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "item_reference", "x", None])
PARTS = st.lists(st.fixed_dictionaries({"type": st.sampled_from(["input_text", "output_text", "refusal", "y"])},
                                       optional={"text": TEXTS, "refusal": TEXTS}), max_size=3)  # fmt: skip
ITEMS = st.fixed_dictionaries({"type": KINDS}, optional={
    "id": TEXTS, "role": st.sampled_from(["user", "assistant", "system", "tool", None]), "content": TEXTS | PARTS,
    "call_id": TEXTS, "name": TEXTS, "arguments": TEXTS, "output": TEXTS | PARTS, "summary": TEXTS | PARTS,
})  # fmt: skip


@given(st.lists(ITEMS, max_size=4))
def test_any_items_are_messages_or_a_mistake(items: list[dict[str, Any]]) -> None:  # F3
    try:
        request = read(input=items)
    except RequestError as error:
        assert error.status == 400 and error.param
        return
    known = [one for one in request.items if one["type"] != "item_reference"]
    again = read(input=known)
    assert list(again.items) == known, "items as they are kept read as themselves"
    for message in messages_of("be brief", again.items):
        assert isinstance(message.get("content", ""), str) and ("content" in message or message["tool_calls"])
