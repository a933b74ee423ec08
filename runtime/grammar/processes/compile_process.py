# SPDX-License-Identifier: Apache-2.0
"""The owner of the process that compiles clients' grammars (`compile_child.py`)."""

import asyncio
import json

from pontil.runtime.errors import RequestError
from pontil.runtime.grammar.processes.bounded_child import ChildLimits
from pontil.runtime.grammar.processes.bounded_process import BoundedProcess
from pontil.runtime.grammar.processes.compile_child import GRAMMAR, SCHEMA, RelaxedSchema

CHECK_TIMEOUT = 10.0
TOO_COMPLEX = "the grammar could not be compiled: it is too complex, ask for something simpler"


class GrammarProcess(BoundedProcess):
    """The process in which grammars are compiled before a worker gets them. An answer is final: the same question
    always gets the same one."""

    name, module, work = "grammars", "pontil.runtime.grammar.processes.compile_child", "checks grammars"

    def __init__(self, limits: ChildLimits | None = None, timeout: float = CHECK_TIMEOUT) -> None:
        super().__init__(limits or ChildLimits(), timeout)

    async def check(self, grammar: str) -> str | None:
        """Return the reason why the grammar cannot be used, None if it can. Raises RequestError on timeout, and
        Unavailable without a process to ask."""
        answer = await self.find(GRAMMAR + grammar)
        return TOO_COMPLEX if answer is None else answer or None

    async def relax(self, schema: str) -> RelaxedSchema | str:
        """Return what a grammar holds of a JSON schema, given as JSON, or the reason why nothing is possible. Raises
        like `check`."""
        answer = await self.find(SCHEMA + schema)
        if answer is None:
            return TOO_COMPLEX
        answer_fields = json.loads(answer)
        return str(answer_fields["reason"]) if "reason" in answer_fields else RelaxedSchema(**answer_fields)

    async def find(self, question: str) -> str | None:
        try:
            return await self.ask(question)
        except asyncio.TimeoutError:
            says = f"it takes more than {self.timeout:g} s to compile: ask for something simpler"
            raise RequestError(says) from None
