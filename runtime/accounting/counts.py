# SPDX-License-Identifier: Apache-2.0
"""Token counts of one request, from what the workers state (rules A3 to A6). Pure: no clock, no I/O, no text."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

PREFILL, DECODE, WHOLE = "prefill", "decode", "whole"
FINISH_REASONS = ("stop", "length")
# The end of a request that was answered with a vector, and with no tokens.
EMBEDDED = "embedded"
# That of a pair of texts that was answered with a score.
SCORED = "scored"
# That of a prompt that was computed for a lease, which was granted.
LEASED = "leased"


@dataclass(frozen=True, slots=True)
class Usage:
    """The billed tokens of a request. `cached_tokens` of the `prompt_tokens` were not computed, `audio_tokens` of the
    `completion_tokens` became sound."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    audio_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            self.audio_tokens + other.audio_tokens,
        )


@dataclass(slots=True)
class AttemptCount:
    """One attempt at one choice: the ids accepted from it, and the counts stated by the `phases` that served it."""

    phases: tuple[str, ...]
    accepted: int = 0
    dead: bool = False
    generated: dict[str, int] = field(default_factory=dict)

    @property
    def stated(self) -> int | None:
        """The sum of the attempt's phases, or None while a phase that must state a count has not. A dead attempt counts
        its accepted ids."""
        if self.dead:
            return self.accepted
        total = 0
        for phase in self.phases:
            phase_tokens = self.generated.get(phase)
            if phase_tokens is None:
                return None
            total += phase_tokens
        return total


class ChoiceAccount:
    """The tokens of one choice, with `budget` tokens to generate.

    The stated sum is authoritative when every phase that must state a count did; otherwise accepted ids are counted.
    Only the first valid statement of each phase counts. Either way the billed tokens stay within 0…budget, and within
    what was accepted: a client never pays for tokens that a worker only claims to have sent (docs/decisions/010).
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.attempts: dict[int, AttemptCount] = {}

    @property
    def accepted(self) -> int:
        return sum([count.accepted for count in self.attempts.values()])

    @property
    def stated(self) -> int | None:
        """The sum over all attempts, unclamped, or None when a required count is missing."""
        total = 0
        for count in self.attempts.values():
            attempt_tokens = count.stated
            if attempt_tokens is None:
                return None
            total += attempt_tokens
        return total

    @property
    def generated(self) -> int:
        """The total before it is clamped."""
        stated_tokens = self.stated
        return self.accepted if stated_tokens is None else stated_tokens

    @property
    def billed(self) -> int:
        return min(self.generated, self.accepted, self.budget)

    @property
    def clamped(self) -> bool:
        """True if the workers claimed more than the budget."""
        return self.generated > self.budget

    @property
    def disputed(self) -> bool:
        """True if the stated sum differs from the ids that arrived: a fault worth counting."""
        stated_tokens = self.stated
        return stated_tokens is not None and stated_tokens != self.accepted


class Account:
    """The account of one request: its prompt, once, and `choices` answers with `budget` tokens to generate each. With
    `audible` they are tokens of sound."""

    def __init__(self, prompt_tokens: int, budget: int, choices: int = 1, audible: bool = False) -> None:
        self.prompt_tokens, self.audible = prompt_tokens, audible
        self.choices = [ChoiceAccount(budget) for _ in range(choices)]
        self.cached_by: dict[int, dict[str, int]] = {}

    def open(self, attempt: int, phases: tuple[str, ...], ended: Collection[int] = ()) -> None:
        """Start a new attempt; `phases` are the parts that serve it. No count is required for choices that `ended` in
        an earlier one."""
        self.cached_by[attempt] = {}
        for number, choice in enumerate(self.choices):
            choice.attempts[attempt] = AttemptCount(() if number in ended else phases)

    def accept(
        self,
        attempt: int,
        phase: str,
        new_ids: int,
        generated: int | None = None,
        cached: int | None = None,
        choice: int = 0,
    ) -> None:
        """Count one frame: `new_ids` of its ids were accepted (not seen before), and it stated these counts."""
        count = self.choices[choice].attempts[attempt]
        count.accepted += new_ids
        if generated is not None and generated >= 0:
            count.generated.setdefault(phase, generated)
        self.state_cached(attempt, phase, cached)

    def state_cached(self, attempt: int, phase: str, cached_tokens: int | None) -> None:
        """Note what a phase found cached when it was admitted. It may state it again, but not change it."""
        if cached_tokens is not None and cached_tokens >= 0:
            self.cached_by[attempt].setdefault(phase, cached_tokens)

    def ended_by(self, attempt: int, phase: str, choice: int = 0) -> None:
        """Note that `phase` finished the choice. If prefill did, there was no handoff and no other phase has to state a
        count."""
        if phase == PREFILL:
            self.choices[choice].attempts[attempt].phases = (PREFILL,)

    def died(self, attempt: int) -> None:
        """End an attempt without further frames: the ids accepted from it count, whatever it stated."""
        for choice in self.choices:
            choice.attempts[attempt].dead = True

    @property
    def clamped(self) -> int:
        """The number of choices of which the workers claimed more than the budget."""
        return sum([choice.clamped for choice in self.choices])

    @property
    def disputed(self) -> int:
        """The number of choices whose stated sum differs from the ids that arrived."""
        return sum([choice.disputed for choice in self.choices])

    @property
    def usage(self) -> Usage:
        return self.usage_of([choice.billed for choice in self.choices])

    @property
    def running_usage(self) -> Usage:
        """The usage of a request in progress, from the ids that have arrived so far."""
        return self.usage_of([min(choice.accepted, choice.budget) for choice in self.choices])

    def usage_of(self, completion_tokens: Iterable[int]) -> Usage:
        total = sum(completion_tokens)
        return Usage(self.prompt_tokens, total, min(self.cached, self.prompt_tokens), total if self.audible else 0)

    @property
    def cached(self) -> int:
        """The cached tokens of the first attempt, as its prefill admitted it (A9); decode may only repeat the
        number."""
        for phase_counts in self.cached_by.values():
            for phase in (PREFILL, WHOLE, DECODE):
                if phase in phase_counts:
                    return phase_counts[phase]
        return 0

    def finish_reason(self, stated_reason: str | None, choice: int = 0) -> str | None:
        """Return the worker's own reason; only when it gave none, "length" once the budget is used (A6). None: not
        finished."""
        is_budget_used = self.choices[choice].accepted >= self.choices[choice].budget
        if stated_reason is not None:
            return stated_reason if stated_reason in FINISH_REASONS else ("length" if is_budget_used else "stop")
        return "length" if is_budget_used else None
