# SPDX-License-Identifier: Apache-2.0
"""The rules by which one sequence's tokens are drawn and end it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from pontil.runtime.engine.sequences.guide import Guide
from pontil.runtime.engine.sequences.narrowing import Narrowing
from pontil.runtime.engine.sequences.sampling_state import SamplingState


class StopCheck(Protocol):
    """Checks the tokens of one sequence for its stop strings."""

    def feed(self, token_id: int) -> str | None:
        """Return the stop string that this token completed, if any."""


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

    def pass_by(self, tokens: Iterable[int]) -> None:
        """Take tokens that were checked elsewhere."""
        if self.check is not None:
            for token in tokens:
                self.check.feed(token)

    def fork(self) -> "SequenceStops":
        """Return those of another choice, whose tokens are its own."""
        return SequenceStops(self.make_check)


@dataclass(slots=True)
class DrawRules:
    """State made of a sequence's parameters and tokens when first needed: the guide that enforces its grammar, if
    it has one, what its parameters take from the guide's masks, and its edits of logits; and its stop strings."""

    make_guide: Callable[[], Guide] | None = None
    own_guide: Guide | None = None
    narrowing: Narrowing | None = None
    state: SamplingState | None = None
    stops: SequenceStops = field(default_factory=SequenceStops)

    @property
    def guide(self) -> Guide | None:
        if self.own_guide is None and self.make_guide is not None:
            self.own_guide = self.make_guide()
        return self.own_guide

    def fork(self) -> "DrawRules":
        """Return those of another choice, whose tokens, guide and stop strings are its own."""
        return DrawRules(self.make_guide, stops=self.stops.fork())
