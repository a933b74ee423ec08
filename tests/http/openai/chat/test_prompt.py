# SPDX-License-Identifier: Apache-2.0
"""Input of the chat template, seen through /tokenize with a template that writes out all its variables."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_site import MODEL, HttpAnswer, ScriptedSite, site

from pontil.http.fields.picture import Picture
from pontil.http.fields.recording import MediaPart, MixedContent
from pontil.http.openai.chat.kept_beginning import KeptBeginning
from pontil.http.openai.chat.request import read_chat
from pontil.runtime.tokenizer.tokenizer import load_tokenizer

EVERYTHING = """{%- if messages[0].content == "object" %}
    {{- raise_exception("no such thing") }}
{%- endif %}
{{- {"messages": messages, "tools": tools, "documents": documents, "prompt": add_generation_prompt,
     "mood": mood | default("none")} | tojson }}"""
USER = {"role": "user", "content": "hi"}
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1, "é"]}'}}


TOOL_TEMPLATE = "with {{ tools | length }} for {{ messages[0].role }}{# developer #}"


@pytest.fixture(scope="module")
def showing(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedSite]:
    folder = tmp_path_factory.mktemp("showing")
    shutil.copytree(tokenizer_folder, folder / "model")
    (folder / "model" / "chat_template.jinja").write_text(EVERYTHING)
    with site(folder, load_tokenizer(folder / "model")) as made:
        made.pair()
        yield made


def ask(site: ScriptedSite, **fields: Any) -> HttpAnswer:
    return site.ask("POST", "/tokenize", {"model": MODEL, "messages": [USER]} | fields)


def text(site: ScriptedSite, **fields: Any) -> str:
    answer = ask(site, **fields)
    assert answer.status == 200, answer.body
    return site.tokenizer.decode(answer.json["tokens"], skip_special_tokens=False)


def seen(site: ScriptedSite, **fields: Any) -> Any:
    return json.loads(text(site, **fields))


def test_the_least(showing: ScriptedSite) -> None:
    assert seen(showing) == {"messages": [USER], "tools": None, "documents": None, "prompt": True, "mood": "none"}


def test_messages_of_every_role(showing: ScriptedSite) -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
        USER | {"name": "me"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "reasoning_content": "hm"},
        {"role": "tool", "content": "7", "tool_call_id": "c1", "name": "f"},
        {"role": "assistant", "content": "seven", "tool_calls": []},
    ]
    called = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": [1, "é"]}}}
    assert seen(showing, messages=messages)["messages"] == [
        {"role": "system", "content": "be brief"},
        USER | {"name": "me"},
        {"role": "assistant", "tool_calls": [called], "reasoning_content": "hm", "thinking": "hm"},
        {"role": "tool", "content": "7", "tool_call_id": "c1", "name": "f"},
        {"role": "assistant", "content": "seven"},
    ]


@pytest.mark.parametrize(
    ("fields", "tools"),
    [
        ({"tools": [TOOL]}, [TOOL]),
        ({"tools": [TOOL], "tool_choice": "auto"}, [TOOL]),
        ({"tools": [TOOL], "tool_choice": "none"}, None),
        ({"tools": []}, None),
    ],
)
def test_tools_are_shown_as_they_were_sent(showing: ScriptedSite, fields: dict[str, Any], tools: Any) -> None:
    assert seen(showing, **fields)["tools"] == tools


def test_what_no_reader_knows_is_in_no_prompt(showing: ScriptedSite) -> None:  # F3
    """Clients send back what other servers added to a message or to a tool."""
    odd = {"cache_control": {"type": "ephemeral"}, "provider_specific_fields": {"x": 1}}
    function = {"name": "f", "arguments": '{"a": [1, "é"]}'}
    call = CALL | {"index": 0, "function": function | odd} | odd
    cleaned = [USER, {"role": "assistant", "content": "a", "tool_calls": [CALL]}]
    sent = [
        USER | odd | {"content": [{"type": "text", "text": "hi"} | odd]},
        {"role": "assistant", "content": "a", "tool_calls": [call], "refusal": "no", "annotations": [1]} | odd,
    ]
    answer = ask(showing, messages=sent, tools=[TOOL | odd | {"function": FUNCTION | odd}])
    assert answer.status == 200, answer.body
    assert answer.json == ask(showing, messages=cleaned, tools=[TOOL]).json
    assert set(answer.headers["x-pontil-ignored"].split(", ")) == {
        f"{place}.{name}"
        for place in (
            "messages[]", "messages[].content[]", "messages[].tool_calls[]", "messages[].tool_calls[].function",
            "tools[]", "tools[].function",
        )
        for name in odd
    } | {"messages[].refusal", "messages[].annotations"}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "mood", "ignored"),
    [
        ({"chat_template_kwargs": {"mood": "a", "odd": 1}}, "a", "chat_template_kwargs.odd"),
        ({"reasoning_effort": "low"}, "none", "reasoning_effort"),
        ({"verbosity": "high", "reasoning_effort": ""}, "none", "verbosity"),
        ({"documents": [{"a": "b"}]}, "none", None),
    ],
)
def test_variables_that_a_template_does_not_read_are_named(
    showing: ScriptedSite, fields: dict[str, Any], mood: str, ignored: str | None
) -> None:  # F3
    answer = ask(showing, **fields)
    assert answer.headers["x-pontil-ignored"] == ignored
    assert json.loads(showing.tokenizer.decode(answer.json["tokens"], skip_special_tokens=False))["mood"] == mood


def test_effort_and_verbosity_reach_a_template_that_reads_them(tokenizer_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(tokenizer_folder, tmp_path / "model")
    template = "{{ reasoning_effort | default('medium') }}, {{ verbosity | default('short') }}"
    (tmp_path / "model" / "chat_template.jinja").write_text(template)
    with site(tmp_path, load_tokenizer(tmp_path / "model")) as made:
        assert text(made) == "medium, short"
        assert text(made, reasoning_effort="low", verbosity="long") == "low, long"
        assert ask(made, reasoning_effort="low").headers["x-pontil-ignored"] is None
        twice = ask(made, reasoning_effort="low", chat_template_kwargs={"reasoning_effort": "high"})
        assert made.tokenizer.decode(twice.json["tokens"]) == "high, short"
        assert twice.headers["x-pontil-ignored"] == "reasoning_effort"


def test_a_template_of_its_own_for_tools(tokenizer_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(tokenizer_folder, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text("for {{ messages[0].role }}")
    (tmp_path / "model" / "additional_chat_templates").mkdir()
    (tmp_path / "model" / "additional_chat_templates" / "tool_use.jinja").write_text(TOOL_TEMPLATE)
    messages = [{"role": "developer", "content": "x"}]
    with site(tmp_path, load_tokenizer(tmp_path / "model")) as made:
        assert text(made, messages=messages) == "for system"
        assert text(made, messages=messages, tools=[TOOL]) == "with 1 for developer"
        assert text(made, messages=messages, tools=[TOOL], tool_choice="none") == "for system"


def test_variables_and_documents(showing: ScriptedSite) -> None:
    given = seen(showing, chat_template_kwargs={"mood": {"a": [1]}, "self": 1}, documents=[{"title": "t"}])
    assert (given["mood"], given["documents"]) == ({"a": [1]}, [{"title": "t"}])
    assert seen(showing, add_generation_prompt=False)["prompt"] is False


def test_a_message_is_continued(showing: ScriptedSite) -> None:
    messages = [USER, {"role": "assistant", "content": "so far "}]
    assert text(showing, messages=messages, continue_final_message=True).endswith('"content": "so far ')


def test_a_chat_sees_the_same_prompt(showing: ScriptedSite) -> None:
    count = ask(showing, tools=[TOOL]).json["count"]
    assert showing.chat(messages=[USER], tools=[TOOL], max_tokens=1).json["usage"]["prompt_tokens"] == count


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ({"content": None}, {"content": ""}),
        ({}, {"content": ""}),
        ({"content": None, "reasoning_content": "hm"}, {"content": "", "thinking": "hm", "reasoning_content": "hm"}),
        ({"content": None, "reasoning": "hm", "tool_calls": []}, {"content": "", "reasoning": "hm", "thinking": "hm"}),
    ],
)
def test_an_answer_that_was_cut_off_while_it_reasoned_comes_back(showing: ScriptedSite, sent: Any, shown: Any) -> None:
    messages = [USER, {"role": "assistant"} | sent, USER]
    found = seen(showing, messages=messages)["messages"]
    assert found[0] == found[2] == USER and {"role": "assistant"} | shown | found[1] == found[1]


@pytest.mark.parametrize("cut", ["{", '{"a": [1, "\\u00', '{"a": 1', '{"a": NaN}', "[" * 5000, ""])
def test_a_call_that_was_cut_off_comes_back_without_arguments(showing: ScriptedSite, cut: str) -> None:
    """A template expects objects: a string in their place would be quoted, or fail."""
    call = CALL | {"function": {"name": "f", "arguments": cut}}
    (_, found) = seen(showing, messages=[USER, {"role": "assistant", "content": None, "tool_calls": [call]}])[
        "messages"
    ]
    assert found["tool_calls"][0]["function"] == {"name": "f", "arguments": {}}


ASSISTANT = {"role": "assistant", "content": None}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "assistant", "content": 1}]}, "messages[0].content"),
    ({"messages": [USER | {"tool_calls": [CALL]}]}, "messages[0].tool_calls"),
    ({"messages": [USER | {"images": ["x"]}]}, "messages[0].images"),
    ({"messages": [ASSISTANT | {"tool_calls": {}}]}, "messages[0].tool_calls"),
    ({"messages": [ASSISTANT | {"tool_calls": ["f"]}]}, "messages[0].tool_calls[0]"),
    ({"messages": [ASSISTANT | {"tool_calls": [{"id": "c"}]}]}, "messages[0].tool_calls[0].function"),
    ({"messages": [ASSISTANT | {"tool_calls": [CALL | {"type": "code"}]}]}, "messages[0].tool_calls[0].type"),
    (
        {"messages": [ASSISTANT | {"tool_calls": [CALL | {"function": {"name": "f", "arguments": "[]"}}]}]},
        "messages[0].tool_calls[0].function.arguments",
    ),
    ({"messages": [{"role": "tool", "content": None}]}, "messages[0].content"),
    ({"tools": TOOL}, "tools"),
    ({"tools": ["f"]}, "tools[0]"),
    ({"tools": [TOOL | {"type": "code"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {"description": "d"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": FUNCTION | {"parameters": []}}]}, "tools[0].function.parameters"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"documents": ["text"]}, "documents[0]"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
    ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
    ({"messages": [ASSISTANT | {"tool_calls": [CALL]}], "continue_final_message": True}, "continue_final_message"),
    ({"chat_template": "{{ messages }}"}, "chat_template"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=lambda value: str(value)[:60])
def test_what_is_wrong_is_named(showing: ScriptedSite, fields: dict[str, Any], param: str) -> None:
    for path in ("/tokenize", "/v1/chat/completions"):
        answer = showing.ask("POST", path, {"model": MODEL, "messages": [USER]} | fields)
        assert (answer.status, answer.json["error"]["param"]) == (400, param), answer.body


def test_what_a_template_refuses_says_where(showing: ScriptedSite) -> None:
    answer = showing.chat(messages=[{"role": "user", "content": "object"}])
    assert answer.status == 400 and answer.json["error"]["param"] == "messages"
    assert "at line 2: no such thing" in answer.json["error"]["message"]


def test_a_beginning_that_is_kept_ends_where_its_mark_does() -> None:
    """An image counts as one character of its message, and is in the beginning or not."""
    pictures = [Picture(bytes([number]), f"place {number}") for number in (1, 2)]
    content = MixedContent(("ab", pictures[0], "c", pictures[1]))
    texts: dict[MediaPart, str] = {pictures[0]: "<one>", pictures[1]: "<two>"}
    assert len(content) == 5 and content.heard(texts) == "ab<one>c<two>"
    heard = [content.heard(texts, most) for most in range(6)]
    assert heard == ["", "a", "ab", "ab<one>", "ab<one>c", "ab<one>c<two>"]
    prompt = read_chat({"messages": [{"role": "user", "content": "x"}]}, 9).prompt
    prompt = replace(prompt, messages=(prompt.messages[0], {"role": "user", "content": content}))
    for cut, text in enumerate(heard):
        kept = KeptBeginning(60, 1, cut).heard(prompt, texts)
        begun = kept.of(prompt.heard(texts)).messages
        assert [message["content"] for message in begun] == (["x", text] if cut else ["x"])
    assert KeptBeginning(60).heard(prompt, texts) == KeptBeginning(60)
