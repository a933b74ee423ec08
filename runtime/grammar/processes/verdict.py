# SPDX-License-Identifier: Apache-2.0
"""The outcome of the check of an answer against its schema."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

NOT_JSON = "the answer is no complete JSON"


class SchemaState(Enum):
    """The values of the header `x-pontil-schema`."""

    MET = "met"
    NOT_MET = "not met"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one check. `reason` says in a few words why the schema is not met, or why that is not known."""

    state: SchemaState
    reason: str = ""

    @staticmethod
    def met() -> Verdict:
        return Verdict(SchemaState.MET)

    @staticmethod
    def not_met(reason: str) -> Verdict:
        return Verdict(SchemaState.NOT_MET, reason)

    @staticmethod
    def not_checked(reason: str) -> Verdict:
        return Verdict(SchemaState.NOT_CHECKED, reason)
