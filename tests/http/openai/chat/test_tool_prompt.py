# SPDX-License-Identifier: Apache-2.0
"""A template without tool support: tools, calls and results are written into the messages, in roles that the template
takes, and calls are read. Only without a call format are they refused."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from scripted_site import ScriptedSite, site

from pontil.http.openai.chat.prompt import CHAT_PROMPT, chat_prompt
from pontil.http.openai.chat.tool_prompt import teacher_for
from pontil.http.schema.parameter import read_all
from pontil.http.schema.reader import Fields
from pontil.runtime.chat.answer_part import Arguments
from pontil.runtime.chat.calls.format import FORMATS, HERMES, CallFormat
from pontil.runtime.chat.chat_template import ChatTemplate
from pontil.runtime.chat.dialect import Dialect
from pontil.runtime.tokenizer.tokenizer import Tokenizer

SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Łódź"}'}}
RESULTS = [{"role": "tool", "content": text, "tool_call_id": "c1"} for text in ("7°", "8°")]
ASSISTANT: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]}


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    with site(tmp_path_factory.mktemp("taught"), tokenizer) as made:
        made.worker(max_model_len=4096)
        yield made


@pytest.fixture(scope="module")
def unread(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    with site(tmp_path_factory.mktemp("unread"), tokenizer, tool_call_parser="none") as made:
        made.worker()
        yield made


def prompt(site: ScriptedSite, *messages: dict[str, Any], **more: Any) -> str:
    answer = site.ask("POST", "/tokenize", {"messages": messages} | more)
    assert answer.status == 200, answer.body
    return site.tokenizer.decode(answer.json["tokens"], skip_special_tokens=False)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"messages": [USER], "tools": [TOOL]}, "tools"),
        ({"messages": [USER, ASSISTANT, *RESULTS]}, "messages"),
    ],
)
def test_they_are_refused(unread: ScriptedSite, asked: dict[str, Any], param: str) -> None:  # F3
    for path in ("/tokenize", "/v1/chat/completions"):
        answer = unread.ask("POST", path, asked)
        assert (answer.status, answer.json["error"]["param"]) == (400, param)
        assert "knows no tools" in answer.json["error"]["message"] and "--tool-call-parser" in answer.body.decode()
    assert unread.chat(tools=[TOOL], tool_choice="none", max_tokens=1).status == 200


def test_they_are_written_into_the_system_message(taught: ScriptedSite) -> None:
    alone, beside = prompt(taught, USER, tools=[TOOL]), prompt(taught, SYSTEM, USER, tools=[TOOL])
    for text in (alone, beside):
        assert (
            text.count("<|im_start|>system\n") == 1
            and '\n{"name": "weather", "parameters": {"type": "object"}}\n' in text
        )
        assert '<tool_call>\n{"name": "example_function", "arguments": {"example_argument": "value"}}' in text
    assert "<|im_start|>system\nBe brief.\n\nYou can call" in beside
    assert prompt(taught, USER, tools=[TOOL], tool_choice="none") == prompt(taught, USER)


def test_calls_and_their_results_are_written_out(taught: ScriptedSite) -> None:
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Łódź"}}\n</tool_call>'
    text = prompt(taught, USER, ASSISTANT | {"content": "I look."}, *RESULTS, USER)
    results = "<tool_response>\n7°\n</tool_response>\n<tool_response>\n8°\n</tool_response>"
    assert f"assistant\nI look.\n{call}\n{call}<|im_end|>\n<|im_start|>user\n{results}<|im_end|>\n" in text
    last = f"assistant\n{call}\n{call}<|im_end|>\n<|im_start|>user\n{results}<|im_end|>\n<|im_start|>assistant\n"
    assert prompt(taught, USER, ASSISTANT, *RESULTS).endswith(last)


@pytest.mark.parametrize("begin", ["<tool_call>", ""])
def test_and_the_answers_calls_are_read(taught: ScriptedSite, begin: str) -> None:
    """A call without its tags counts too, unless a grammar asks for them."""
    call = f'{begin}{{"name": "weather", "arguments": {{"city": "Oslo"}}}}{begin.replace("<", "</")}'
    taught.workers[0].answer = taught.tokenizer.encode(call, False)
    (choice,) = taught.chat(tools=[TOOL]).json["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    (kept,) = taught.chat(tools=[TOOL], parallel_tool_calls=False).json["choices"]
    assert kept["finish_reason"] == ("tool_calls" if begin else "stop")


def test_a_call_can_be_required(taught: ScriptedSite) -> None:
    while not taught.workers[0].submits.empty():
        taught.workers[0].submits.get()
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        assert taught.chat(tools=[TOOL], tool_choice=choice).status == 200
        assert "<tool_call>" in taught.workers[0].submits.get(timeout=60).sampling["grammar"]


# Templates that take only some roles, and what becomes of them.
PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
REFUSING = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + PLAIN
DROPPING = "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
STRICT = """{% for m in messages %}{% if not loop.first and m.role == messages[loop.index0 - 1].role %}
{{- raise_exception('roles alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}
{% endfor %}"""


def roles(template: str, *messages: dict[str, Any]) -> list[str]:
    fields = Fields({"messages": list(messages), "tools": [TOOL]})
    prompt = chat_prompt(fields, read_all(fields, CHAT_PROMPT))
    made = ChatTemplate(template)
    taught = teacher_for(made, HERMES).taught(prompt)
    text = made.render(taught.messages)
    assert '"name": "weather"' in text and text.index("<tools>") < text.index("hi")
    return [message["role"] for message in taught.messages]


def test_roles_are_those_that_the_template_takes() -> None:
    turns = (USER, ASSISTANT, *RESULTS, USER)
    usual = ["user", "assistant", "user", "user"]
    assert roles(PLAIN, *turns) == ["system", *usual]
    assert roles(REFUSING, *turns) == usual == roles(DROPPING, *turns)
    assert roles(STRICT, *turns) == ["system", "user", "assistant", "user"]
    assert roles(PLAIN, SYSTEM, *turns) == ["system", *usual]
    assert roles(DROPPING, {"role": "assistant", "content": "Hello"}, USER) == ["user", "assistant", "user"]


@pytest.mark.parametrize("form", FORMATS.values(), ids=list(FORMATS))
def test_every_format_can_be_taught_and_read_back(form: CallFormat) -> None:
    fields = Fields({"messages": [USER, ASSISTANT, *RESULTS], "tools": [TOOL]})
    prompt = chat_prompt(fields, read_all(fields, CHAT_PROMPT))
    made = ChatTemplate(PLAIN)
    lesson, _, calls, _ = teacher_for(made, form).taught(prompt).messages
    assert "example_function" in lesson["content"]
    parser = Dialect(form).reader({"weather": None}, False)
    parts = [*parser.feed(calls["content"]), *parser.finish()]
    assert [json.loads(part.text) for part in parts if isinstance(part, Arguments)] == [{"city": "Łódź"}] * 2
