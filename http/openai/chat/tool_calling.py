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
    tool_fields: ToolFields, own_structure: OutputStructure | None, dialect: Dialect, thinking: bool
) -> OutputStructure | None:
    """Return the grammar of an output that may call tools and may have its own structure; None if unconstrained.
    `thinking` as in ReadPrompt. Raises RequestError for constraints that cannot be combined."""
    thought, form = dialect.thought(thinking), dialect.calls
    if own_structure is not None and own_structure.written and dialect.has_messages:
        own_structure = replace(own_structure, grammar=in_final_message(own_structure.grammar))
    if not tool_fields.tools:
        return (
            own_structure
            if own_structure is None or not own_structure.written
            else replace(own_structure, grammar=behind_thought(own_structure.grammar, thought))
        )
    if own_structure is not None:
        return beside(tool_fields, own_structure, form, thought)
    if form is None:
        refuse_promises(tool_fields)
        return None
    if tool_fields.choice.mode == "required":
        return grammar_for("tools", lambda: required(tool_fields, form, thought))
    if tool_fields.parallel and not any(tool.strict for tool in tool_fields.tools):
        return None
    return grammar_for("tools", lambda: possible(tool_fields, form, thought))


def beside(
    tool_fields: ToolFields, own_structure: OutputStructure, form: CallFormat | None, thought: Thought
) -> OutputStructure:
    """Return a grammar of either calls or the requested structure."""
    if form is None or tool_fields.choice.mode == "required" or not own_structure.written:
        says = f'{own_structure.param} leaves no room for calls of tools: set tool_choice to "none", or leave one out'
        raise RequestError(says, param=own_structure.param)
    structure = grammar_for(
        "tools",
        lambda: grammar_of_calls_or_form(
            call_texts(tool_fields, form), frame(form, tool_fields.parallel), own_structure.grammar, thought
        ),
    )
    return replace(own_structure, grammar=structure.grammar, param=structure.param)


def refuse_promises(tool_fields: ToolFields) -> None:
    """Refuse guarantees about calls where calls cannot be parsed and so are ordinary text."""
    reason = "needs calls to be read, and this server was started with --tool-call-parser none: leave it out, or have \
it started with auto"
    if tool_fields.choice.mode == "required":
        raise RequestError(f"tool_choice {reason}", param="tool_choice")
    if not (tool_fields.parallel or tool_fields.legacy):
        raise RequestError(f"parallel_tool_calls {reason}", param="parallel_tool_calls")
    strict = next((number for number, tool in enumerate(tool_fields.tools) if tool.strict), None)
    if strict is not None:
        param = tool_fields.path(strict, "strict")
        raise RequestError(f"{param} {reason}", param=param)


def required(tool_fields: ToolFields, form: CallFormat, thought: Thought) -> str:
    """Return a grammar of calls only; every schema is enforced, strict or not. A model that was taught a format is held
    to one call: it would go on without end."""
    name = tool_fields.choice.name
    tools = [tool for tool in tool_fields.tools if name in (None, tool.name)]
    calls = [call_text(tool, form, True, number) for number, tool in enumerate(tools)]
    return grammar_of_calls(calls, frame(form, tool_fields.parallel and name is None and not form.taught), thought)


def possible(tool_fields: ToolFields, form: CallFormat, thought: Thought) -> str:
    """Return a grammar of text and optional calls; the schemas of strict tools are enforced."""
    if form.messages:
        final = in_final_message(f"{START}TEXT\n")
        return grammar_of_calls_or_form(call_texts(tool_fields, form), frame(form, False), final, thought)
    write = grammar_of_calls_in_text if form.anywhere else grammar_of_calls_or_text
    return write(call_texts(tool_fields, form), frame(form, tool_fields.parallel), form.openings, thought)


def frame(form: CallFormat, several: bool) -> CallFrame:
    """Return what stands around calls. A message that is a call ends the answer, so that there is no other."""
    return CallFrame(form.begin, form.between if several and not form.messages else None, form.end)


def call_texts(tool_fields: ToolFields, form: CallFormat) -> list[CallText]:
    return [call_text(tool, form, tool.strict, number) for number, tool in enumerate(tool_fields.tools)]


def call_text(tool: Tool, form: CallFormat, is_enforced: bool, number: int) -> CallText:
    """Return the call of one tool. A tool without parameters takes none; a schema without a type means an object."""
    schema = NOTHING if tool.parameters is None else {"type": "object"} | dict(tool.parameters)
    arguments, rules = form.syntax.grammar(schema if is_enforced else None, tool.strict, number)
    return CallText(form.head(tool.name), arguments, form.tail, rules)
