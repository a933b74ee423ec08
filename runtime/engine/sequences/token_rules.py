# SPDX-License-Identifier: Apache-2.0
"""The rules by which one sequence's tokens are drawn and end it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pontil.runtime.engine.sequences.guide import Guide
from pontil.runtime.engine.sequences.narrowing import Narrowing
from pontil.runtime.engine.sequences.sampling_state import SamplingState


class StopCheck(Protocol):
    """Checks the tokens of one sequence for its stop strings."""

    def feed(self, token_id: int) -> str | None:
        """Return the stop string that this token completed, if any."""


@dataclass(slots=True)
class DrawRules:
    """State made of a sequence's parameters and tokens when first needed: the guide that enforces its grammar, if
    it has one, what its parameters take from the guide's masks, and its edits of logits."""

    make_guide: Callable[[], Guide] | None = None
    own_guide: Guide | None = None
    narrowing: Narrowing | None = None
    state: SamplingState | None = None

    @property
    def guide(self) -> Guide | None:
        if self.own_guide is None and self.make_guide is not None:
            self.own_guide = self.make_guide()
        return self.own_guide


class SequenceStops:
    """The stop strings of a sequence, which have a check of its tokens if there are any, and the `match` that ended
    it."""

    def __init__(self, make_check: Callable[[], StopCheck] | None = None) -> None:
        self.make_check = make_check
        self.check = None if make_check is None else make_check()
        self.match: str | None = None

    def feed(self, token_id: int) -> bool:
        """Return whether this token completed a stop string."""
        if self.check is not None:
            self.match = self.check.feed(token_id)
        return self.match is not None

    def fork(self) -> "SequenceStops":
        """Return those of another choice, whose tokens are its own."""
        return SequenceStops(self.make_check)
