# SPDX-License-Identifier: Apache-2.0
"""Constraints on a chat's output: from its tools, in the model's own call format, and from its response format.
Pure."""

from dataclasses import replace
from typing import Any

from pontil.http.fields.structured_output import OutputStructure, grammar_for
from pontil.http.fields.tools import Tool, ToolFields
from pontil.runtime.chat.calls.format import CallFormat
from pontil.runtime.chat.dialect import Dialect
from pontil.runtime.errors import RequestError
from pontil.runtime.grammar.call_grammar import (
    CallFrame,
    CallText,
    grammar_of_calls,
    grammar_of_calls_in_text,
    grammar_of_calls_or_form,
    grammar_of_calls_or_text,
)
from pontil.runtime.grammar.grammar_text import START, Thought, behind_thought, in_final_message

NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def structure_of(
    wanted: ToolFields, own: OutputStructure | None, dialect: Dialect, thinking: bool
) -> OutputStructure | None:
    """Return the grammar of an output that may call tools and may have its `own` structure; None if unconstrained.
    `thinking` as in ReadPrompt. Raises RequestError for constraints that cannot be combined."""
    thought, form = dialect.thought(thinking), dialect.calls
    if own is not None and own.written and dialect.has_messages:
        own = replace(own, grammar=in_final_message(own.grammar))
    if not wanted.tools:
        return own if own is None or not own.written else replace(own, grammar=behind_thought(own.grammar, thought))
    if own is not None:
        return beside(wanted, own, form, thought)
    if form is None:
        refuse_promises(wanted)
        return None
    if wanted.choice.mode == "required":
        return grammar_for("tools", lambda: required(wanted, form, thought))
    if wanted.parallel and not any(tool.strict for tool in wanted.tools):
        return None
    return grammar_for("tools", lambda: possible(wanted, form, thought))


def beside(wanted: ToolFields, own: OutputStructure, form: CallFormat | None, thought: Thought) -> OutputStructure:
    """Return a grammar of either calls or the requested structure."""
    if form is None or wanted.choice.mode == "required" or not own.written:
        says = f'{own.param} leaves no room for calls of tools: set tool_choice to "none", or leave one out'
        raise RequestError(says, param=own.param)
    structure = grammar_for(
        "tools",
        lambda: grammar_of_calls_or_form(call_texts(wanted, form), frame(form, wanted.parallel), own.grammar, thought),
    )
    return replace(own, grammar=structure.grammar, param=structure.param)


def refuse_promises(wanted: ToolFields) -> None:
    """Refuse guarantees about calls where calls cannot be parsed and so are ordinary text."""
    reason = "needs calls to be read, and this server was started with --tool-call-parser none: leave it out, or have \
it started with auto"
    if wanted.choice.mode == "required":
        raise RequestError(f"tool_choice {reason}", param="tool_choice")
    if not (wanted.parallel or wanted.legacy):
        raise RequestError(f"parallel_tool_calls {reason}", param="parallel_tool_calls")
    strict = next((number for number, tool in enumerate(wanted.tools) if tool.strict), None)
    if strict is not None:
        param = wanted.path(strict, "strict")
        raise RequestError(f"{param} {reason}", param=param)


def required(wanted: ToolFields, form: CallFormat, thought: Thought) -> str:
    """Return a grammar of calls only; every schema is enforced, strict or not. A model that was taught a format is held
    to one call: it would go on without end."""
    name = wanted.choice.name
    tools = [tool for tool in wanted.tools if name in (None, tool.name)]
    calls = [call_text(tool, form, True, number) for number, tool in enumerate(tools)]
    return grammar_of_calls(calls, frame(form, wanted.parallel and name is None and not form.taught), thought)


def possible(wanted: ToolFields, form: CallFormat, thought: Thought) -> str:
    """Return a grammar of text and optional calls; the schemas of strict tools are enforced."""
    if form.messages:
        final = in_final_message(f"{START}TEXT\n")
        return grammar_of_calls_or_form(call_texts(wanted, form), frame(form, False), final, thought)
    write = grammar_of_calls_in_text if form.anywhere else grammar_of_calls_or_text
    return write(call_texts(wanted, form), frame(form, wanted.parallel), form.openings, thought)


def frame(form: CallFormat, several: bool) -> CallFrame:
    """Return what stands around calls. A message that is a call ends the answer, so that there is no other."""
    return CallFrame(form.begin, form.between if several and not form.messages else None, form.end)


def call_texts(wanted: ToolFields, form: CallFormat) -> list[CallText]:
    return [call_text(tool, form, tool.strict, number) for number, tool in enumerate(wanted.tools)]


def call_text(tool: Tool, form: CallFormat, enforced: bool, number: int) -> CallText:
    """Return the call of one tool. A tool without parameters takes none; a schema without a type means an object."""
    schema = NOTHING if tool.parameters is None else {"type": "object"} | dict(tool.parameters)
    arguments, rules = form.syntax.grammar(schema if enforced else None, tool.strict, number)
    return CallText(form.head(tool.name), arguments, form.tail, rules)
