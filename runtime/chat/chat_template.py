# SPDX-License-Identifier: Apache-2.0
"""Render messages to a prompt with the Jinja template that comes with a model, as transformers does.

A template is part of a model file and may come from anywhere: it runs sandboxed, its output and its counting loops are
bounded, and any failure in it is the request's error, never the server's.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pontil.runtime.errors import RequestError

MAX_CHARACTERS = 32 << 20
MAX_RANGE_ITEMS = 1_000_000
FAILURES = (
    TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
    MemoryError,
)
FILE_NAME = "<template>"
"""Jinja's name for the file of a template that came as text."""
END_MARK = "<the last message ends here> "
"""Stands in the output where a message to be continued ends. Its last space shows whether that was trimmed."""
REASONING = ("reasoning_content", "thinking", "reasoning")
NOTHING: Mapping[str, Any] = MappingProxyType({})


class TemplateRefusal(TemplateError):
    """A template's own objection to the messages, through `raise_exception`."""


class PromptTooLong(RequestError):
    """A prompt that grew beyond the length that was asked for."""


class ChatTemplate:
    """A model's template, compiled once; threads may share it. A model without one has `source` None.

    `tokens` are the texts of its tokens by role, as "bos_token"; templates test a missing one with `is defined`.
    """

    def __init__(self, source: str | None, tokens: Mapping[str, str] = NOTHING) -> None:
        self.source = source
        self.tokens = dict(tokens)
        self.template = None
        self.variables: frozenset[str] = frozenset()
        self.failure = "the model has no chat template: use /v1/completions"
        if source is not None:
            try:
                env = environment()
                syntax_tree = env.parse(source)
                self.variables = frozenset(name.name for name in syntax_tree.find_all(nodes.Name))
                self.template = env.from_string(syntax_tree)
            except (TemplateError, RecursionError) as error:
                self.failure = f"the model's chat template cannot be used{place(error)} ({error}): use /v1/completions"

    def mentions(self, word: str) -> bool:
        return self.source is not None and word in self.source

    def shows(self, role: str) -> bool:
        """Return whether messages of a role appear in prompts. Raises RequestError if the template objects to them."""
        trial = [{"role": "user", "content": "a"}, {"role": role, "content": END_MARK}]
        return END_MARK.strip() in self.render(trial, add_generation_prompt=False)

    @property
    def knows_tools(self) -> bool:
        """Return whether the template uses tools. One that cannot be used reports that itself."""
        return self.template is None or "tools" in self.variables

    def writes(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether the template takes these messages and writes all of their contents."""
        try:
            text = self.render(messages)
        except RequestError:
            return False
        return all(message["content"] in text for message in messages)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] = NOTHING,
        most: int = MAX_CHARACTERS,
    ) -> str:
        """Render the prompt, of at most `most` characters. `variables` are further ones that some templates know. With
        `continue_final_message` it ends where the last message does.

        Raises RequestError if there is no usable template, if it objects to the messages, and if it fails on them, and
        PromptTooLong.
        """
        plain_messages = [plain(message) for message in messages]
        ending = plain_messages[-1]["content"] if continue_final_message else None
        if ending is not None:
            plain_messages[-1]["content"] = ending + END_MARK
        context = {
            "messages": plain_messages,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
            "range": RangeBudget(),
        }
        text = self.run(self.tokens | dict(variables) | context, most)
        return text if ending is None else cut_at_mark(text, ending)

    def run(self, variables: dict[str, Any], most: int) -> str:
        if self.template is None:
            raise RequestError(self.failure, param="messages")
        try:
            return "".join(bounded(self.template.generate(variables), most))
        except TemplateRefusal as error:
            reason = f"the model's chat template refuses the messages{place(error)}: {error}"
            raise RequestError(reason, param="messages") from error
        except FAILURES as error:
            reason = f"the model's chat template fails on these messages{place(error)}: {error}"
            raise RequestError(reason, param="messages") from error


def plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """A copy without members that are None, which templates would write as the word; reasoning under every name it has
    had."""
    members = {name: value for name, value in message.items() if value is not None}
    reasoning = next((members[name] for name in REASONING if name in members), None)
    return members if reasoning is None else {"thinking": reasoning, **members, "reasoning_content": reasoning}


def cut_at_mark(text: str, ending: str) -> str:
    """The prompt up to the end of its last message. A template that trims the message has also trimmed the mark's
    space."""
    at = text.rfind(END_MARK.strip())
    if at < 0 or ending.strip() not in text:
        reason = "the model's chat template does not write the last message out: it cannot be continued"
        raise RequestError(reason, param="continue_final_message")
    return text[:at] if text.startswith(END_MARK, at) else text[:at].rstrip()


def environment() -> ImmutableSandboxedEnvironment:
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag])
    env.filters["tojson"] = to_json
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = strftime_now
    return env


def bounded(pieces: Iterator[str], most: int) -> Iterator[str]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > most:
            raise PromptTooLong(f"the prompt grows beyond {most} characters: send less", param="messages")
        yield piece


class RangeBudget:
    """`range` for one rendering: all ranges together may not be longer than MAX_RANGE_ITEMS."""

    def __init__(self) -> None:
        self.left = MAX_RANGE_ITEMS

    def __call__(self, *bounds: int) -> range:
        items = range(*bounds)
        self.left -= len(items)
        if self.left < 0:
            raise TemplateRefusal(f"the template counts further than {MAX_RANGE_ITEMS}")
        return items


class GenerationTag(Extension):
    """`{% generation %}` marks an assistant's text, for training; here its body is rendered unchanged."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


def place(error: BaseException) -> str:
    """The place of an error in the template, as far as the error tells."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == FILE_NAME]
    line = getattr(error, "lineno", None) or (lines[-1] if lines else None)
    return "" if line is None else f" at line {line}"


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Serialize without escaping: Jinja's own filter would write `<` and `'` for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def refuse(message: str) -> None:
    raise TemplateRefusal(message)


def strftime_now(form: str) -> str:
    return strftime_at(time.time(), form)


def strftime_at(at: float, form: str) -> str:
    return datetime.fromtimestamp(at).strftime(form)
