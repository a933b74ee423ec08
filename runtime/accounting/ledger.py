# SPDX-License-Identifier: Apache-2.0
"""Double entry for tokens: what workers made for each request, and what became of it. Pure: no clock, no I/O.

Every id is booked twice. As generated, with the worker that made it: its `Share` of a request, and its `Book` over all
requests. And as delivered or discarded, with the request's `Entry`. Conservation (A11), for what is closed and open:

    of an entry   generated = delivered + the sum of discarded, and billed = delivered
    of a book     booked + late = heard + unheard
    of a book     generated - before = heard_then + missing, whenever its worker has stated what it generated

Frames of one worker arrive in the order in which they were sent, heartbeats among them: when a count is stated, every
id that it counts has been heard.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pontil.runtime.accounting.counts import DECODE, PREFILL, Usage

# Why an id that was generated was not delivered; "late" ones belong to no open request and are booked by worker only.
AFTER_END, BEYOND_BUDGET, BROKEN, REPEATED, LATE = "after_end", "beyond_budget", "broken", "repeated", "late"
DISCARDS = (AFTER_END, BEYOND_BUDGET, BROKEN, REPEATED, LATE)
# Counts above this are nobody's: they stay exact in JSON and in SQLite's integers.
MOST = 1 << 53
# How many closed requests are remembered, so that frames that come late are booked right.
REMEMBERED = 1024


def stated_count(value: object) -> int | None:
    """What a worker states, where it can be a count at all."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST else None


@dataclass(slots=True)
class Book:
    """One worker's incarnation, as one proxy hears it.

    `heard` counts the ids that it sent and made itself, `booked` those in entries, `late` the others, `unheard` those
    that another worker received from it and repeated before its own frame came. `before` is what the worker had
    generated when it first registered here, `since` when it last did, `generated` what it stated last, `heard_then`
    what had been heard at that moment; `missing` ids were lost with a connection.
    """

    name: str = "-"
    heard: int = 0
    booked: int = 0
    late: int = 0
    unheard: int = 0
    heard_at_hello: int = 0
    before: int | None = None
    since: int | None = None
    generated: int = 0
    heard_then: int = 0
    missing: int = 0

    def registered(self, name: str) -> None:
        """Between a Hello and its Welcome a worker generates nothing: what is missing now never comes."""
        self.name, self.heard_at_hello = name, self.heard

    def state(self, counters: Mapping[str, int]) -> None:
        """A heartbeat. Workers that count otherwise, or not at all, are left unstated."""
        generated = stated_count(counters.get("generated_tokens"))
        since = stated_count(counters.get("generated_before"))
        if generated is None or since is None:
            return
        if self.before is None:
            self.before = since
        if since != self.since:
            self.since, self.missing = since, max(0, since - self.before - self.heard_at_hello)
        self.generated, self.heard_then = generated, self.heard

    @property
    def imbalance(self) -> int:
        kept = abs(self.booked + self.late - self.heard - self.unheard)
        if self.before is None:
            return kept
        return kept + abs(self.generated - self.before - self.missing - self.heard_then)


@dataclass(slots=True)
class Share:
    """What one worker made of one choice. Its own ids begin at position `first`, those from `reached` on are new."""

    book: Book
    phase: str
    first: int
    reached: int
    giver: "Share | None" = None
    booked: int = 0
    vouched: int = 0
    stated: int | None = None

    def hear(self, index: int, count: int) -> int:
        """`count` ids from position `index` on; how many of them are its own and were not booked before."""
        new = min(count, index + count - self.reached)
        if new <= 0:
            return 0
        self.reached = index + count
        self.book.heard += new
        if self.vouched:
            known = min(self.vouched, new)
            self.vouched -= known
            self.book.unheard -= known
            new -= known
        return new

    def vouch(self) -> int:
        """Another worker repeats the first id: it was made, whether this worker's own frame comes or not."""
        if self.booked:
            return 0
        self.booked = self.vouched = 1
        self.book.booked += 1
        self.book.unheard += 1
        return 1

    @property
    def generated(self) -> int:
        """As stated, else as heard."""
        return self.booked if self.stated is None else self.stated


class Entry:
    """One request. `shares` are by attempt, worker and choice."""

    __slots__ = ("billed", "books", "choices", "delivered", "discarded", "prompt", "prompt_stated", "shares")

    def __init__(self, prompt: int, choices: int, books: dict[str, Book]) -> None:
        self.prompt, self.choices, self.books = prompt, choices, books
        self.prompt_stated: int | None = None
        self.shares: dict[tuple[int, str, int], Share] = {}
        self.delivered = 0
        self.discarded: dict[str, int] = {}
        self.billed: Usage | None = None

    def begin(self, attempt: int, phases: Mapping[str, str], known: Sequence[int] = ()) -> None:
        """These workers serve the attempt. As many ids as `known` says of each choice are given to them."""
        givers = [worker for worker, phase in phases.items() if phase == PREFILL]
        for worker, phase in sorted(phases.items(), key=lambda item: item[1] == DECODE):
            book = self.books.setdefault(worker, Book())
            for choice, given in enumerate(known or [0] * self.choices):
                first = max(given, 1) if phase == DECODE else given
                giver = self.shares[attempt, givers[0], choice] if phase == DECODE and givers and not given else None
                self.shares[attempt, worker, choice] = Share(book, phase, first, first, giver)

    def hear(self, attempt: int, worker: str, choice: int, index: int, count: int, stated: int | None = None) -> int:
        """A frame of an open request. How many ids became generated by it: `settle` says what became of them."""
        share = self.shares[attempt, worker, choice]
        new = share.hear(index, count)
        share.booked += new
        share.book.booked += new
        if stated is not None and share.stated is None:
            share.stated = stated_count(stated)
        if share.giver is not None and count and index < share.first:
            return new + share.giver.vouch()
        return new

    def settle(self, generated: int, delivered: int, reason: str) -> None:
        """`delivered` ids were accepted into the response; the rest of those generated were not, for this reason."""
        self.delivered += delivered
        if generated > delivered:
            self.discarded[reason] = self.discarded.get(reason, 0) + generated - delivered

    @property
    def generated(self) -> int:
        return sum(share.generated for share in self.shares.values())

    @property
    def imbalance(self) -> int:
        """Zero, or some worker stated what it did not send. An open entry is billed nothing yet."""
        wrong = abs(self.generated - self.delivered - sum(self.discarded.values()))
        if self.billed is not None:
            wrong += abs(self.billed.completion_tokens - self.delivered)
        return wrong + (0 if self.prompt_stated is None else abs(self.prompt_stated - self.prompt))

    def by_worker(self) -> dict[tuple[int, str], tuple[str, int]]:
        """For each attempt and worker its phase and the ids booked, over all choices."""
        sums: dict[tuple[int, str], tuple[str, int]] = {}
        for (attempt, worker, _), share in self.shares.items():
            sums[attempt, worker] = share.phase, sums.get((attempt, worker), ("", 0))[1] + share.booked
        return sums


@dataclass(slots=True)
class Totals:
    """The sums over all closed requests. A request of which nothing was delivered is not billed."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    generated: int = 0
    delivered: int = 0
    imbalance: int = 0
    discarded: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DISCARDS, 0))

    @property
    def settled_otherwise(self) -> int:
        """Ids of closed requests that were discarded; late ones belong to none."""
        return sum(count for reason, count in self.discarded.items() if reason != LATE)

    def add(self, entry: Entry, billed: Usage) -> None:
        self.requests += 1
        if entry.delivered:
            self.prompt_tokens += billed.prompt_tokens
            self.cached_tokens += billed.cached_tokens
            self.completion_tokens += billed.completion_tokens
        self.generated += entry.generated
        self.delivered += entry.delivered
        self.imbalance += entry.imbalance
        for reason, count in entry.discarded.items():
            self.discarded[reason] += count


class Ledger:
    """All requests and workers of one proxy. A request is open from its admission until it is closed, once."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.closed: dict[str, Entry] = {}
        self.books: dict[str, Book] = {}
        self.totals = Totals()

    def open(self, request: str, prompt: int, choices: int = 1) -> Entry:
        assert request not in self.entries and request not in self.closed, "request ids are minted once"
        entry = self.entries[request] = Entry(prompt, choices, self.books)
        return entry

    def close(self, request: str, billed: Usage) -> Entry:
        """Raises KeyError for a request that is not open: closing twice is a bug of ours."""
        entry = self.closed[request] = self.entries.pop(request)
        entry.billed = billed
        self.totals.add(entry, billed)
        while len(self.closed) > REMEMBERED:
            del self.closed[next(iter(self.closed))]
        return entry

    def stray(self, worker: str, request: str, attempt: int, choice: int, index: int, count: int) -> None:
        """Ids that nobody waits for: of a request that is closed or unknown, of a dead attempt, or out of any sense."""
        book = self.books.get(worker)
        if book is None or not count:
            return
        entry = self.entries.get(request) or self.closed.get(request)
        share = None if entry is None else entry.shares.get((attempt, worker, choice))
        if share is None or index < 0:
            book.heard += count
            book.late += count
            self.totals.discarded[LATE] += count
        else:
            new = share.hear(index, count)
            book.late += new
            self.totals.discarded[LATE] += new

    def registered(self, worker: str, name: str) -> None:
        self.books.setdefault(worker, Book()).registered(name)

    def state(self, worker: str, counters: Mapping[str, int]) -> None:
        if worker in self.books:
            self.books[worker].state(counters)

    @property
    def imbalance(self) -> int:
        """Tokens that do not add up: 0, unless a worker, the network or this code does not keep the rules."""
        return self.totals.imbalance + sum(book.imbalance for book in self.books.values())
