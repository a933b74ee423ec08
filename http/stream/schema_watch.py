# SPDX-License-Identifier: Apache-2.0
"""The check of finished answers against the JSON schema that was asked for, where no grammar could hold all of it, and
the way in which a reply tells its outcome."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pontil.http.stream.answer_checker import AnswerChecker
from pontil.runtime.grammar.processes.verdict import SchemaState, Verdict
from pontil.runtime.proxy.requests.answer import Delta, Ended

HEADER = "x-pontil-schema"
FIELD = "x_pontil_schema"


class SchemaWatch:
    """The texts of one reply's choices, checked together at the reply's end."""

    def __init__(self, checker: AnswerChecker, schema: str) -> None:
        self.checker, self.schema = checker, schema
        self.said: dict[int, list[str]] = {}
        # The ends of the choices that have ended, in this order.
        self.ended: dict[int, Ended] = {}

    def observe(self, index: int, event: Delta | Ended) -> None:
        if isinstance(event, Ended):
            self.ended[index] = event
        else:
            self.said.setdefault(index, []).append(event.text)

    def text(self, index: int) -> str:
        return "".join(self.said.get(index, ()))

    async def verdicts(self, contents: Sequence[str | None]) -> dict[int, Verdict]:
        """Return the verdict on each choice; one without content has nothing to follow a schema."""
        choice_verdicts = {}
        for index, content in enumerate(contents):
            choice_verdicts[index] = (
                Verdict.met() if content is None else await self.checker.verdict(self.schema, content)
            )
        return choice_verdicts


def schema_field(verdict: Verdict) -> dict[str, Any]:
    """Return the field of a choice, which is there only where the schema is not known to be met."""
    if verdict.state is SchemaState.MET:
        return {}
    return {FIELD: {"state": verdict.state.value, "reason": verdict.reason}}


def schema_note(verdict: Verdict) -> bytes:
    """Return the same as bytes that continue an object."""
    verdict_fields = schema_field(verdict)
    return b"," + json.dumps(verdict_fields).encode()[1:-1] if verdict_fields else b""


def schema_header(verdicts: Mapping[int, Verdict]) -> dict[str, str]:
    """Return the header of a whole reply: the worst state of its choices, if that is not that all meet the schema."""
    states = {verdict.state for verdict in verdicts.values()}
    worst = next((state for state in (SchemaState.NOT_MET, SchemaState.NOT_CHECKED) if state in states), None)
    return {} if worst is None else {HEADER: worst.value}
