# SPDX-License-Identifier: Apache-2.0
"""Tool descriptions in the messages, for a template without tool support. Pure."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pontil.http.openai.chat.prompt import ChatPrompt, Message
from pontil.runtime.chat.calls.format import FORMATS, CallFormat
from pontil.runtime.chat.chat_template import ChatTemplate
from pontil.runtime.errors import RequestError

RESULT, RESULT_END = "<tool_response>", "</tool_response>"
SYSTEM = ("system", "developer")
EXAMPLE, KEY = "example_function", "example_argument"


@dataclass(frozen=True, slots=True)
class ToolTeacher:
    """Writes tools, calls and their results into messages of the roles that a template takes: some refuse or drop the
    system's, and some two of the user in a row."""

    form: CallFormat | None
    takes_system: bool
    takes_neighbours: bool

    def taught(self, prompt: ChatPrompt) -> ChatPrompt:
        """Write the tools into the messages. Raises RequestError if calls are not read."""
        if self.form is None:
            param = "tools" if prompt.tools.shown else "messages"
            raise RequestError(
                f"{param} cannot be used: the model's chat template knows no tools, and this server was started with "
                f"--tool-call-parser none. Leave them out, or have it started with auto or {' or '.join(FORMATS)}, "
                "which writes them into the messages",
                param=param,
            )
        messages = list(written(prompt.messages, self.form))
        if not self.takes_neighbours:
            messages = list(joined(messages))
        if prompt.tools.shown:
            messages = self.with_lesson(messages, instructions(prompt.tools.shown, self.form))
        return replace(prompt, messages=tuple(messages))

    def with_lesson(self, messages: list[Message], lesson: str) -> list[Message]:
        """Put the lesson behind the system's text, or before the first message where there is none."""
        first, later_messages = messages[0], messages[1:]
        if first["role"] in SYSTEM:
            return [first | {"content": f"{first['content']}\n\n{lesson}"}, *later_messages]
        if self.takes_system:
            return [{"role": "system", "content": lesson}, *messages]
        if first["role"] == "user":
            return [first | {"content": f"{lesson}\n\n{first['content']}"}, *later_messages]
        return [{"role": "user", "content": lesson}, *messages]


def teacher_for(template: ChatTemplate, form: CallFormat | None) -> ToolTeacher:
    """Try which messages a template takes."""
    user, again = {"role": "user", "content": "one"}, {"role": "user", "content": "two"}
    system = {"role": "system", "content": "three"}
    return ToolTeacher(form, template.writes([system, user]), template.writes([user, again]))


def instructions(tools: Sequence[dict[str, Any]], form: CallFormat) -> str:
    tool_lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    call = form.begin + form.written(EXAMPLE, {KEY: "value"}) + form.end
    return (
        f"You can call functions. Each line between the next two tags describes one:\n<tools>\n{tool_lines}\n</tools>\n"
        f"To call a function, write this and nothing else, with the function's name and arguments instead of the "
        f"example's:\n{call}\n"
        f"Results of functions come between {RESULT} and {RESULT_END}. If no function helps, answer as usual."
    )


def written(messages: Sequence[Message], form: CallFormat) -> Iterator[Message]:
    """Yield the messages with calls as text of the assistant, and consecutive results as one message of the user."""
    results: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            results.append(f"{RESULT}\n{message['content']}\n{RESULT_END}")
            continue
        if results:
            yield {"role": "user", "content": "\n".join(results)}
            results = []
        yield with_calls(message, form) if "tool_calls" in message else message
    if results:
        yield {"role": "user", "content": "\n".join(results)}


def joined(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the messages with neighbours of one role as one."""
    last: Message | None = None
    for message in messages:
        if last is not None and last["role"] == message["role"]:
            last = last | {"content": "\n\n".join(filter(None, (last["content"], message["content"])))}
            continue
        if last is not None:
            yield last
        last = message
    if last is not None:
        yield last


def with_calls(message: Message, form: CallFormat) -> Message:
    functions = [call["function"] for call in message["tool_calls"]]
    calls = form.between.join(form.written(function["name"], function["arguments"]) for function in functions)
    before = [message["content"]] if message.get("content") else []
    text = "\n".join([*before, form.begin + calls + form.end])
    return {name: value for name, value in message.items() if name != "tool_calls"} | {"content": text}
