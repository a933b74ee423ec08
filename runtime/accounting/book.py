# SPDX-License-Identifier: Apache-2.0
"""What one worker's incarnation counts of itself, against what one proxy heard of it. Pure: no clock, no I/O.

Frames of one worker arrive in the order in which they were sent, heartbeats among them: when a count is stated, all
that it counts has been heard.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

# Counts above this are nobody's: they stay exact in JSON and in SQLite's integers.
MOST = 1 << 53


def stated_count(value: object) -> int | None:
    """What a worker states, where it can be a count at all."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST else None


@dataclass(slots=True)
class Claim:
    """One cumulative count. These hold at every heartbeat:

        booked + late = heard + unheard
        stated - before = heard_then + missing

    `heard` is what it sent, `booked` what of it is in entries, `late` the rest, `unheard` what another worker received
    from it and repeated before its own frame came. `before` is what it had counted when it first registered here,
    `since` when it last did, `stated` what it stated last, `heard_then` what had been heard at that moment; `missing`
    was lost with a connection.
    """

    heard: int = 0
    booked: int = 0
    late: int = 0
    unheard: int = 0
    heard_at_hello: int = 0
    before: int | None = None
    since: int | None = None
    stated: int = 0
    heard_then: int = 0
    missing: int = 0

    def state(self, stated: object, since: object) -> None:
        """Workers that count otherwise, or not at all, are left unstated."""
        count, start = stated_count(stated), stated_count(since)
        if count is None or start is None:
            return
        if self.before is None:
            self.before = start
        if start != self.since:
            self.since, self.missing = start, max(0, start - self.before - self.heard_at_hello)
        self.stated, self.heard_then = count, self.heard

    @property
    def stated_here(self) -> int | None:
        """What it has stated since it first registered here."""
        return None if self.before is None else self.stated - self.before

    @property
    def imbalance(self) -> int:
        kept = abs(self.booked + self.late - self.heard - self.unheard)
        stated = self.stated_here
        return kept if stated is None else kept + abs(stated - self.missing - self.heard_then)


@dataclass(slots=True)
class Book(Claim):
    """The ids that a worker generated, and in `prompts` the prompt tokens that it computed for the first time. Once the
    worker is gone the book waits to be folded."""

    name: str = "-"
    gone: bool = False
    prompts: Claim = field(default_factory=Claim)

    def registered(self, name: str) -> None:
        """Between a Hello and its Welcome a worker generates nothing: what is missing now never comes."""
        self.name, self.gone = name, False
        self.heard_at_hello, self.prompts.heard_at_hello = self.heard, self.prompts.heard

    def hear_counters(self, counters: Mapping[str, int]) -> None:
        """A heartbeat."""
        self.state(counters.get("generated_tokens"), counters.get("generated_before"))
        self.prompts.state(counters.get("prompt_tokens_computed"), counters.get("prompt_tokens_computed_before"))


@dataclass(slots=True)
class Folded:
    """The sum of the books of workers that are long gone: what they were out of balance by stays visible."""

    workers: int = 0
    heard: int = 0
    imbalance: int = 0

    def add(self, book: Book) -> None:
        self.workers += 1
        self.heard += book.heard
        self.imbalance += book.imbalance + book.prompts.imbalance
