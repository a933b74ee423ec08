# SPDX-License-Identifier: Apache-2.0
"""Messages to a prompt, by the Jinja template that comes with a model, as transformers renders it.

A template is part of a model file and may come from anywhere: it runs sandboxed, its output and its counting loops are
bounded, and whatever goes wrong in it is the request's error, never the server's.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Sequence
from datetime import datetime
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
"""What Jinja calls the file of a template that came as text."""


class Refusal(TemplateError):
    """A template's own objection to the messages, through `raise_exception`."""


class ChatTemplate:
    """A model's template, compiled once; threads may share it. A model without one has `source` None."""

    def __init__(self, source: str | None, bos_token: str | None, eos_token: str | None) -> None:
        tokens = {"bos_token": bos_token, "eos_token": eos_token}
        # Templates ask `is defined`; a token that is None would be written as the word.
        self.tokens = {name: token for name, token in tokens.items() if token is not None}
        self.template = None
        self.failure = "the model has no chat template: use /v1/completions"
        if source is not None:
            try:
                self.template = environment().from_string(source)
            except (TemplateError, RecursionError) as error:
                self.failure = f"the model's chat template cannot be used{place(error)} ({error}): use /v1/completions"

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[dict[str, Any]] | None = None,
        **extra: Any,
    ) -> str:
        """The prompt. `extra` are variables that some templates know. Raises RequestError where there is no usable
        template, where it objects to the messages, and where it fails on them."""
        if self.template is None:
            raise RequestError(self.failure, param="messages")
        given = {"messages": messages, "tools": tools, "documents": None, "range": RangeBudget()}
        variables = self.tokens | extra | given | {"add_generation_prompt": add_generation_prompt}
        try:
            return "".join(bounded(self.template.generate(variables)))
        except Refusal as error:
            raise RequestError(f"the model's chat template refuses the messages: {error}", param="messages") from error
        except FAILURES as error:
            reason = f"the model's chat template fails on these messages{place(error)}: {error}"
            raise RequestError(reason, param="messages") from error


def environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = strftime_now
    return made


def bounded(pieces: Iterator[str]) -> Iterator[str]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > MAX_CHARACTERS:
            raise Refusal(f"the prompt grows beyond {MAX_CHARACTERS} characters")
        yield piece


class RangeBudget:
    """`range` for one rendering: all ranges together may not be longer than MAX_RANGE_ITEMS."""

    def __init__(self) -> None:
        self.left = MAX_RANGE_ITEMS

    def __call__(self, *bounds: int) -> range:
        items = range(*bounds)
        self.left -= len(items)
        if self.left < 0:
            raise Refusal(f"the template counts further than {MAX_RANGE_ITEMS}")
        return items


class Generation(Extension):
    """`{% generation %}` marks what an assistant said, for training; here its body is rendered as it stands."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


def place(error: BaseException) -> str:
    """Where in the template, as far as the error tells."""
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
    """Jinja's own filter would write `<` and `'` for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def refuse(message: str) -> None:
    raise Refusal(message)


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
