# SPDX-License-Identifier: Apache-2.0
"""The owner of the process that checks answers against their JSON schemas (`check_child.py`)."""

import asyncio
import json

from pontil.runtime.errors import Unavailable
from pontil.runtime.grammar.processes.bounded_child import ChildLimits
from pontil.runtime.grammar.processes.bounded_process import BoundedProcess
from pontil.runtime.grammar.processes.verdict import SchemaState, Verdict

CHECK_TIMEOUT = 3.0
CPU_SECONDS = 1


class AnswerCheckProcess(BoundedProcess):
    """The process in which answers are checked, each within a second of the processor."""

    name, module, work = "answers", "pontil.runtime.grammar.processes.check_child", "checks answers"

    def __init__(self, timeout: float = CHECK_TIMEOUT) -> None:
        super().__init__(ChildLimits(cpu_seconds=CPU_SECONDS), timeout)

    async def verdict(self, schema: str, text: str) -> Verdict | None:
        """Return whether the answer follows the schema, given as JSON; None if the check took too much of anything."""
        try:
            answer = await self.ask(json.dumps([schema, text]))
        except asyncio.TimeoutError:
            return None
        except Unavailable as error:
            return Verdict.not_checked(str(error))
        if answer is None:
            return None
        state, reason = json.loads(answer)
        return Verdict(SchemaState(state), reason)
