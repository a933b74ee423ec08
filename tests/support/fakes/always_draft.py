# SPDX-License-Identifier: Apache-2.0
"""A draft policy that does not go by time, so that guesses come on any machine."""

from collections import abc

from pontil.runtime.engine.drafts.policy import DraftPlan, Option


class AlwaysDraft:
    """A policy that has the draft model make as many guesses as there may be, or else takes them from repeated text."""

    def __init__(self, with_lookup: bool = False) -> None:
        self.with_lookup = with_lookup

    def plan(self, options: abc.Sequence[Option], room: int) -> DraftPlan:
        plan = DraftPlan.empty(len(options))
        for place, one in enumerate(options):
            looked = min(one.found, room) if self.with_lookup or one.missing is None else 0
            plan.lookups[place] = looked
            plan.models[place] = 0 if looked or one.missing is None else min(one.limit, room)
            room -= max(looked, plan.models[place])
        return plan

    def drafted(self, rows: int, seconds: float) -> None: ...
    def stepped(self, sequences: int, rows: int, seconds: float | None, spent: float) -> None: ...
    def saved(self, tokens: int) -> None: ...
