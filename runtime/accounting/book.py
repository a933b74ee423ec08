# SPDX-License-Identifier: Apache-2.0
"""The counts that one worker's incarnation states, against what one proxy heard of it. Pure: no clock, no I/O.

Frames of one worker arrive in the order in which they were sent, heartbeats among them: when a count is stated,
everything that it counts has been heard.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

# Larger counts are invalid: up to this they are exact in JSON and in SQLite's integers.
MOST = 1 << 53


def stated_count(value: object) -> int | None:
    """Return a stated value if it is a valid count, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST else None


@dataclass(slots=True)
class Claim:
    """One cumulative count. These hold at every heartbeat:

        booked + late = heard + unheard
        stated - before = heard_then + missing

    `heard` is what the worker sent; `booked` is the part of it in entries, `late` the rest, `unheard` what another
    worker received from it and repeated before its own frame came. `before` is its count when it first registered here,
    `since` when it last did, `stated` the count it stated last, `heard_then` what had been heard at that moment;
    `missing` was lost with connections: what the first heartbeat of a registration counts and nobody heard. Its Hello
    does not show that, since frames that came before it by an earlier connection may be read after it; such a frame may
    be read after the heartbeat as well, and is missing no more at the next one.
    """

    heard: int = 0
    booked: int = 0
    late: int = 0
    unheard: int = 0
    before: int | None = None
    since: int | None = None
    stated: int = 0
    heard_then: int = 0
    missing: int = 0

    def state(self, stated: object, since: object) -> None:
        """Take the count of a heartbeat. A worker that sends no valid count stays unstated."""
        count, start = stated_count(stated), stated_count(since)
        if count is None or start is None:
            return
        if self.before is None:
            self.before = start
        elif start != self.since:
            self.missing = max(0, count - self.before - self.heard)
        self.since = start
        self.stated, self.heard_then = count, self.heard
        self.missing = min(self.missing, max(0, count - self.before - self.heard))

    @property
    def stated_here(self) -> int | None:
        """The count that the worker has stated since it first registered here."""
        return None if self.before is None else self.stated - self.before

    @property
    def imbalance(self) -> int:
        gap = abs(self.booked + self.late - self.heard - self.unheard)
        stated_tokens = self.stated_here
        return gap if stated_tokens is None else gap + abs(stated_tokens - self.missing - self.heard_then)


@dataclass(slots=True)
class Book(Claim):
    """The counts of one worker: the ids that it generated, and in `prompts` the prompt tokens that it computed for the
    first time. The book of a worker that is gone is folded later."""

    name: str = "-"
    gone: bool = False
    prompts: Claim = field(default_factory=Claim)

    def registered(self, name: str) -> None:
        self.name, self.gone = name, False

    def hear_counters(self, counters: Mapping[str, int]) -> None:
        """Take the counters of a heartbeat."""
        self.state(counters.get("generated_tokens"), counters.get("generated_before"))
        self.prompts.state(counters.get("prompt_tokens_computed"), counters.get("prompt_tokens_computed_before"))


@dataclass(slots=True)
class Folded:
    """The sum of the books of workers that are long gone, so that their imbalance stays visible."""

    workers: int = 0
    heard: int = 0
    imbalance: int = 0

    def add(self, book: Book) -> None:
        self.workers += 1
        self.heard += book.heard
        self.imbalance += book.imbalance + book.prompts.imbalance
