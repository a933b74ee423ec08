# SPDX-License-Identifier: Apache-2.0
"""A message's request becomes the request of a chat."""

import json
from pathlib import Path
from typing import Any

import pytest
from api_table import messages_table
from hypothesis import given
from hypothesis import strategies as st

from pontil.http.anthropic.request import MESSAGES, MessagesRequest, read_messages_request
from pontil.http.anthropic.thinking_seal import ThinkingSeal
from pontil.http.openai.chat.request import read_chat
from pontil.http.schema.reader import IgnoredFields
from pontil.runtime.errors import RequestError

VOCABULARY = 1000
ROOT = Path(__file__).resolve().parents[3]
SEAL = ThinkingSeal(b"k" * 32)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"name": "weather", "description": "of a city", "input_schema": SCHEMA}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}}
HI = {"role": "user", "content": "hi"}


def read(ignored: IgnoredFields | None = None, **fields: Any) -> MessagesRequest:
    body = {"messages": [HI], "max_tokens": 9} | fields
    return read_messages_request(body, VOCABULARY, ignored, seal=SEAL)


def messages(*turns: Any, **fields: Any) -> list[dict[str, Any]]:
    return list(read(messages=list(turns), **fields).chat.prompt.messages)


def thought(text: str, signature: str | None = None) -> dict[str, str]:
    return {"type": "thinking", "thinking": text, "signature": SEAL.signature(text) if signature is None else signature}


def test_it_is_the_same_chat() -> None:
    """Everything that a chat has too is read in the same way."""
    same: dict[str, Any] = {"model": "m", "temperature": 0.5, "top_p": 0.5, "seed": 3, "top_k": 5, "cache_salt": "s"}
    made = read(
        system=[{"type": "text", "text": "be brief"}, {"type": "text", "text": "be kind"}],
        tools=[WEATHER],
        tool_choice={"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
        stop_sequences=["x"],
        stream=True,
        output_config={"effort": "low"},
        **same,
    ).chat
    function = {"name": "weather", "description": "of a city", "parameters": SCHEMA}
    chat = read_chat(
        {
            "messages": [{"role": "system", "content": "be brief\n\nbe kind"}, HI],
            "max_tokens": 9,
            "tools": [{"type": "function", "function": function}],
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
            "parallel_tool_calls": False,
            "stop": ["x"],
            "stream": True,
            "stream_options": {"include_usage": True},
            "reasoning_effort": "low",
        }
        | same,
        VOCABULARY,
    )
    for part in ("model", "prompt", "delivery", "handling"):
        assert getattr(made, part) == getattr(chat, part), part
    assert made.sampling.fitted(9) == chat.sampling.fitted(9)


@pytest.mark.parametrize(
    ("choice", "mode", "parallel"),
    [("auto", "auto", True), ("any", "required", True), ("none", "none", True), ("any", "required", False)],
)
def test_the_choice_among_tools(choice: str, mode: str, parallel: bool) -> None:
    tools = read(
        tools=[WEATHER], tool_choice={"type": choice, "disable_parallel_tool_use": not parallel}
    ).chat.prompt.tools
    assert (tools.choice.mode, tools.parallel, len(tools.shown)) == (mode, parallel, 0 if choice == "none" else 1)


def test_turns_become_messages() -> None:
    made = messages(
        HI,
        {"role": "user", "content": [{"type": "text", "text": "there"}]},
        {"role": "assistant", "content": [CALL, thought("hm"), {"type": "text", "text": "I look.", "citations": None}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "7°"}]},
                {"type": "text", "text": "And?"},
            ],
        },
    )
    function = {"name": "weather", "arguments": {"city": "Rome"}}
    assert made == [
        {"role": "user", "content": "hi\n\nthere"},
        {
            "role": "assistant",
            "reasoning_content": "hm",
            "content": "I look.",
            "tool_calls": [{"id": "toolu_1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "7°"},
        {"role": "user", "content": "And?"},
    ]


def test_the_system_may_speak_between_turns() -> None:
    """Claude Code (2.1.156 and later) lists agents and skills so. Where it stands prompts stay alike, and
    every template can show it."""
    said = [{"type": "text", "text": "Agents: none."}]
    later = {"role": "system", "content": said}
    yes = {"role": "assistant", "content": "Yes."}
    reminder = "<system-reminder>\nAgents: none.\n</system-reminder>"
    user = {"role": "user", "content": f"hi\n\n{reminder}"}
    assert messages(HI, later) == [user]
    assert messages(HI, later, yes, HI) == [user, yes, HI]
    assert messages(HI, yes, later, HI) == [HI, yes, {"role": "user", "content": f"{reminder}\n\nhi"}]
    assert messages(later, HI) == [{"role": "system", "content": "Agents: none."}, HI]
    assert messages(later, HI, system="Be brief.")[0]["content"] == "Be brief.\n\nAgents: none."
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "7°"}]}
    made = messages(HI, {"role": "assistant", "content": [CALL]}, result, later)
    assert [message["role"] for message in made] == ["user", "assistant", "tool", "user"]


@given(st.text(max_size=20), st.text(max_size=20), st.booleans())
def test_reasoning_is_the_models_own_only_under_our_seal(text: str, other: str, is_ours: bool) -> None:
    ignored = IgnoredFields()
    block = thought(text) if is_ours else thought(text, SEAL.signature(other) if other != text else "x")
    redacted = {"type": "redacted_thinking", "data": "EmwK"}
    turn = {"role": "assistant", "content": [block, redacted, {"type": "text", "text": "Yes."}]}
    made = read(ignored, messages=[HI, turn, HI]).chat.prompt.messages[1]
    assert made == {"role": "assistant", "content": "Yes."} | ({"reasoning_content": text} if is_ours and text else {})
    assert ("messages[].content[].signature" in ignored.names) is not is_ours
    assert "messages[].content[].redacted_thinking" in ignored.names


def test_another_key_has_other_seals() -> None:
    assert not ThinkingSeal(b"o" * 32).holds("hm", SEAL.signature("hm"))


def test_what_claude_code_sends_is_taken() -> None:
    """Its system prompt is in blocks of which some may be cached, and it names its session."""
    ignored = IgnoredFields()
    ephemeral = {"type": "ephemeral"}
    request = read(
        ignored,
        model="claude-sonnet-4-5-20250929",
        system=[{"type": "text", "text": "You are.", "cache_control": ephemeral}],
        tools=[WEATHER | {"cache_control": ephemeral}, {"type": "web_search_20250305", "name": "web_search"}],
        metadata={"user_id": "user_1"},
        thinking={"type": "enabled", "budget_tokens": 31999},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        max_tokens=32000,
        temperature=1,
        stream=True,
    )
    assert request.thinks and request.max_tokens == 32000 and len(request.chat.prompt.tools.shown) == 1
    assert set(ignored.names) == {
        *("system[].cache_control", "tools[].cache_control", "tools[].web_search_20250305", "metadata"),
        "context_management",
    }
    assert request.chat.sampling.params.thinking_token_budget == 31999
    read(
        IgnoredFields(strict=True),
        metadata={"user_id": "x"},
        system=[{"type": "text", "text": "a", "cache_control": ephemeral}],
    )


def referring(*names: str) -> dict[str, Any]:
    """Return the result of a search among tools."""
    blocks = [{"type": "tool_reference", "tool_name": name} for name in names]
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": blocks}]}


def test_a_deferred_tool_is_shown_where_it_is_named_first() -> None:
    """So Claude Code searches among its tools: the beginning of the prompt stays as it was."""
    tide, called = WEATHER | {"name": "tide", "defer_loading": True}, {"role": "assistant", "content": [CALL]}
    ignored = IgnoredFields()
    found, again = referring("tide", "weather"), referring("tide")
    request = read(ignored, tools=[WEATHER, tide], messages=[HI, called, found, called, again]).chat.prompt
    assert [tool["function"]["name"] for tool in request.tools.shown] == ["weather"]
    assert [tool.name for tool in request.tools.tools] == ["weather", "tide"] and not ignored.names
    first, second = (message["content"] for message in request.messages if message["role"] == "tool")
    described, known = first.split("\n\n")
    function = json.loads(described.removeprefix("<functions>\n<function>").removesuffix("</function>\n</functions>"))
    assert function == {"name": "tide", "description": "of a city", "parameters": SCHEMA}
    assert known == "The function weather can be called." and second == "The function tide can be called."


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": "hi"}, "messages"),
        (
            {"messages": [HI, {"role": "assistant", "content": [CALL]}, referring("tide")]},
            "messages[2].content[0].content[0].tool_name",
        ),
        ({"tools": [WEATHER | {"defer_loading": "x"}]}, "tools[0].defer_loading"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [CALL]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [HI, {"role": "assistant", "content": [CALL]}]}, "messages"),
        ({"messages": [HI, {"role": "assistant", "content": [CALL | {"input": "x"}]}]}, "messages[1].content[0].input"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tools": [WEATHER | {"input_schema": {"type": "array"}}]}, "tools[0].input_schema.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "required"}}, "tool_choice.type"),
        ({"thinking": {"type": "some"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 9}}, "max_tokens"),
        ({"thinking_token_budget": 9}, "thinking_token_budget"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_refused_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(**fields)
    assert caught.value.param == param and caught.value.status == 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "text", "role", "content", "name", "id"]), inner)
    ),
)
NAMES = [declared.name for declared in MESSAGES]


@given(st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4))
def test_hostile_bodies_are_read_or_refused(body: dict[str, Any]) -> None:
    try:
        read(**body)
    except RequestError as error:
        assert error.status in (400, 404) and str(error)


def test_the_page_shows_the_parameters_as_declared() -> None:
    page = (ROOT / "docs" / "guide" / "messages.md").read_text().splitlines() + [""]
    begin = page.index(messages_table()[0])
    assert page[begin : page.index("", begin)] == messages_table(), "tests/support/checks/api_table.py prints the table"
