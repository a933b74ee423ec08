# SPDX-License-Identifier: Apache-2.0
"""One request's token counts, from what the workers state (SPEC A3 to A6). Pure: no clock, no I/O, no text."""

from dataclasses import dataclass, field

PREFILL, DECODE, WHOLE = "prefill", "decode", "whole"
FINISH_REASONS = ("stop", "length")


@dataclass(frozen=True, slots=True)
class Usage:
    """What the client is billed. `cached_tokens` of the `prompt_tokens` were not computed."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
        )


@dataclass(slots=True)
class AttemptCount:
    """One attempt: ids accepted from it, and what its parts (`phases`) that served the request have stated."""

    phases: tuple[str, ...]
    accepted: int = 0
    dead: bool = False
    generated: dict[str, int] = field(default_factory=dict)
    cached: dict[str, int] = field(default_factory=dict)

    @property
    def stated(self) -> int | None:
        """The attempt's own sum, or None while a part that must state a count has not. A dead one counts its ids."""
        if self.dead:
            return self.accepted
        if any(phase not in self.generated for phase in self.phases):
            return None
        return sum(self.generated[phase] for phase in self.phases)


class Account:
    """The account of one request with `budget` tokens to generate over all its choices.

    The stated sum is authoritative when every part that must state a count did; otherwise accepted ids are counted.
    Each part is believed once: its first valid statement stands. Both ways the total stays within 0…budget.
    """

    def __init__(self, prompt_tokens: int, budget: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.budget = budget
        self.attempts: dict[int, AttemptCount] = {}

    def open(self, attempt: int, phases: tuple[str, ...]) -> None:
        """A new attempt starts; `phases` are the parts that serve it."""
        self.attempts[attempt] = AttemptCount(phases)

    def accept(
        self, attempt: int, phase: str, new_ids: int, generated: int | None = None, cached: int | None = None
    ) -> None:
        """One frame: `new_ids` of its ids were accepted (not seen before), and it stated these counts."""
        count = self.attempts[attempt]
        count.accepted += new_ids
        if generated is not None and generated >= 0:
            count.generated.setdefault(phase, generated)
        if cached is not None and cached >= 0:
            count.cached.setdefault(phase, cached)

    def ended_by(self, attempt: int, phase: str) -> None:
        """`phase` finished the request. When prefill did, nothing was handed over and nobody else has to state."""
        if phase == PREFILL:
            self.attempts[attempt].phases = (PREFILL,)

    def died(self, attempt: int) -> None:
        """The attempt gives nothing more: what was accepted from it counts, whatever it stated."""
        self.attempts[attempt].dead = True

    @property
    def accepted(self) -> int:
        return sum(count.accepted for count in self.attempts.values())

    @property
    def stated(self) -> int | None:
        """The sum over all attempts, unclamped, or None when a count that must be there is missing."""
        parts = [count.stated for count in self.attempts.values()]
        return None if None in parts else sum(part for part in parts if part is not None)

    @property
    def generated(self) -> int:
        """The total before the clamp."""
        stated = self.stated
        return self.accepted if stated is None else stated

    @property
    def clamped(self) -> bool:
        """Whether the workers claimed more than the budget."""
        return self.generated > self.budget

    @property
    def disputed(self) -> bool:
        """Whether the stated sum differs from the ids that arrived: a fault worth counting."""
        return self.stated is not None and self.stated != self.accepted

    @property
    def usage(self) -> Usage:
        return Usage(self.prompt_tokens, min(self.generated, self.budget), min(self.cached, self.prompt_tokens))

    @property
    def running_usage(self) -> Usage:
        """Before the end: what has arrived so far."""
        return Usage(self.prompt_tokens, min(self.accepted, self.budget), min(self.cached, self.prompt_tokens))

    @property
    def cached(self) -> int:
        """The first attempt's, as prefill admitted it (A9); decode may only repeat it."""
        for count in self.attempts.values():
            for phase in (PREFILL, WHOLE, DECODE):
                if phase in count.cached:
                    return count.cached[phase]
        return 0

    def finish_reason(self, stated: str | None) -> str | None:
        """The worker's own; only when it gave none, "length" once the budget is used (A6). None: not finished."""
        if stated is not None:
            return stated if stated in FINISH_REASONS else ("length" if self.accepted >= self.budget else "stop")
        return "length" if self.accepted >= self.budget else None
