# SPDX-License-Identifier: Apache-2.0
"""A trial compilation of each grammar before any worker sees it, in a process that it cannot harm."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from pontil.http.fields.structured_output import OutputStructure
from pontil.http.fields.tools import Tool, ToolFields
from pontil.http.intake.caller_turns import CallerTurns
from pontil.runtime.errors import RequestError
from pontil.runtime.grammar.grammar_text import grammar_of_schema
from pontil.runtime.grammar.processes.bounded_process import TOO_COMPLEX, GrammarProcess
from pontil.runtime.grammar.processes.compile_child import RelaxedSchema

TURN_TIMEOUT = 10.0
# Bytes of grammars that wait for their turn: those of the largest size take about a second for each 100,000.
MOST_WAITING = 2 << 20
MOST_REMEMBERED = 1024
# Relaxed schemas beyond this are made again for each request.
MOST_REMEMBERED_CHARACTERS = 1 << 14


# The answer to a question: why a grammar cannot be used, None where it can; or what stands for a schema's grammar.
Judgement = RelaxedSchema | str | None


class GrammarCheck:
    """Cache of trial compilations. Each grammar is compiled once, in a separate process, one at a time and by turns of
    callers."""

    def __init__(self, process: GrammarProcess | None = None) -> None:
        self.process = process or GrammarProcess()
        # By the digest of a grammar, or of a schema that was relaxed.
        self.known: OrderedDict[bytes, Judgement] = OrderedDict()
        self.turns = CallerTurns(MOST_WAITING, "grammars")

    async def check(self, structure: OutputStructure) -> OutputStructure:
        """Return the structure as it can be used: its first check leaves out of the grammar what no grammar holds of
        a schema, unless that is strict. Raises RequestError, naming the parameter, for one that cannot be used."""
        try:
            judgement = await self.remembered(structure.grammar, self.process.check)
            if (
                isinstance(judgement, str)
                and judgement != TOO_COMPLEX
                and structure.schema is not None
                and structure.is_new
            ):
                judgement = await self.remembered(structure.schema, self.process.relax)
            return usable(structure, judgement)
        except RequestError as error:
            raise RequestError(f"{structure.param}: {error}", param=structure.param) from None

    async def relaxed(self, tool_fields: ToolFields) -> ToolFields:
        """Return the tools with schemas that grammars hold. Raises RequestError, naming the tool, for a schema that
        cannot be used, and for a strict one of which something would be left out."""
        tools = []
        for number, tool in enumerate(tool_fields.tools):
            param = tool_fields.path(number, "parameters")
            try:
                tools.append(tool if tool.parameters is None else await self.relaxed_tool(tool, dict(tool.parameters)))
            except RequestError as error:
                raise RequestError(f"{param}: {error}", param=param) from None
        return replace(tool_fields, tools=tuple(tools))

    async def relaxed_tool(self, tool: Tool, parameters: dict[str, Any]) -> Tool:
        judgement = await self.remembered(json.dumps({"type": "object"} | parameters), self.process.relax)
        if not isinstance(judgement, RelaxedSchema):
            raise RequestError(judgement or TOO_COMPLEX)
        refuse_strict(tool.strict, judgement)
        return replace(tool, parameters=json.loads(judgement.schema))

    async def remembered(self, text: str, ask: Callable[[str], Awaitable[Judgement]]) -> Judgement:
        key = hashlib.sha256(f"{ask.__name__} {text}".encode()).digest()
        if key in self.known:
            self.known.move_to_end(key)
            return self.known[key]
        async with self.turns.turn(len(text), TURN_TIMEOUT):
            judgement = self.known[key] if key in self.known else await ask(text)
        if not isinstance(judgement, RelaxedSchema) or len(judgement.schema) <= MOST_REMEMBERED_CHARACTERS:
            self.known[key] = judgement
        if len(self.known) > MOST_REMEMBERED:
            self.known.popitem(last=False)
        return judgement

    def close(self) -> None:
        self.process.end()


def usable(structure: OutputStructure, judgement: Judgement) -> OutputStructure:
    if isinstance(judgement, str):
        raise RequestError(judgement)
    if judgement is None:
        return replace(structure, is_new=False)
    refuse_strict(structure.strict, judgement)
    grammar = grammar_of_schema(json.loads(judgement.schema))
    return replace(structure, is_new=False, grammar=grammar, is_exact=not judgement.left_out)


def refuse_strict(strict: bool, relaxed_schema: RelaxedSchema) -> None:
    if strict and (lost := relaxed_schema.left_out or relaxed_schema.unknown_format):
        raise RequestError(f"strict is true, and no grammar holds {lost}: leave that out, or strict")
