# SPDX-License-Identifier: Apache-2.0
"""Double-entry accounting of tokens: the ids that workers made for each request, and their use. Pure: no clock, no I/O.

Every id is booked twice: as generated, with the worker that made it (its `WorkShare` of a request, and its `Book` over
all requests), and as delivered or discarded, with the request's `LedgerEntry`. Conservation (A11), for closed and open
requests:

    of an entry   generated = delivered + the sum of discarded, and billed = delivered
    of a share    prompt = cached + computed, where its worker computed the prompt; of an entry therefore too, with
                  what the first attempt found as cached, and what any attempt computed first as computed
    of a book     the equations of its Claims, for generated ids and for computed prompt tokens
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pontil.runtime.accounting.book import Book, Folded, stated_count
from pontil.runtime.accounting.counts import DECODE, PREFILL, Usage

# Reasons why a generated id was not delivered.
AFTER_END, BEYOND_BUDGET, BROKEN, REPEATED, UNREAD = "after_end", "beyond_budget", "broken", "repeated", "unread"
# These ids belong to no client's request, and are booked by worker only.
LATE, SELF_TEST = "late", "self_test"
DISCARDS = (AFTER_END, BEYOND_BUDGET, BROKEN, REPEATED, UNREAD, LATE, SELF_TEST)
# Closed requests that are remembered, so that late frames are booked right.
REMEMBERED = 1024
# Workers that are gone but keep a book of their own, so that their late frames are booked.
GONE_REMEMBERED = 64


@dataclass(slots=True)
class WorkShare:
    """The ids that one worker made of one choice. Its own ids begin at position `first`, those from `reached` on are
    new."""

    book: Book
    phase: str
    first: int
    reached: int
    source: "WorkShare | None" = None
    booked: int = 0
    vouched: int = 0
    stated: int | None = None
    cached: int = 0
    computed: int | None = None

    def hear(self, index: int, count: int) -> int:
        """Note `count` ids from position `index` on. Return how many of them are the worker's own and were not booked
        before."""
        new = min(count, index + count - self.reached)
        if new <= 0:
            return 0
        self.reached = index + count
        self.book.heard += new
        if self.vouched:
            vouched_ids = min(self.vouched, new)
            self.vouched -= vouched_ids
            self.book.unheard -= vouched_ids
            new -= vouched_ids
        return new

    def generate(self, index: int, count: int, stated: int | None = None) -> int:
        """Note a frame of an open request. Return how many ids it added to those generated; `LedgerEntry.settle` books
        their use."""
        if index == self.reached and not self.vouched:
            # As `hear` does for ids that only go on, without a call.
            new, self.reached = count, index + count
            self.book.heard += count
        else:
            new = self.hear(index, count)
        self.booked += new
        self.book.booked += new
        if stated is not None and self.stated is None:
            self.stated = stated_count(stated)
        if self.source is not None and count and index < self.first:
            return new + self.source.vouch()
        return new

    def hear_prompt(self, cached_tokens: int | None, computed_tokens: int) -> None:
        """Note how many prompt tokens were cached and computed. Only the first statement is booked, later ones are
        late."""
        self.book.prompts.heard += computed_tokens
        if self.computed is None:
            self.cached, self.computed = cached_tokens or 0, computed_tokens
            self.book.prompts.booked += computed_tokens
        else:
            self.book.prompts.late += computed_tokens

    def vouch(self) -> int:
        """Book the first id when another worker repeats it: it was generated even if this worker's own frame is
        lost."""
        if self.booked:
            return 0
        self.booked = self.vouched = 1
        self.book.booked += 1
        self.book.unheard += 1
        return 1

    def set_aside(self) -> int:
        """Book the ids with the worker only, since no client asked for them. Return how many there were."""
        computed_tokens = self.computed or 0
        self.book.booked -= self.booked
        self.book.late += self.booked
        self.book.prompts.booked -= computed_tokens
        self.book.prompts.late += computed_tokens
        return self.booked

    @property
    def generated(self) -> int:
        """The count as stated, else as heard."""
        return self.booked if self.stated is None else self.stated


class LedgerEntry:
    """The entry of one request. `shares` are by attempt, worker and choice. One that was `answered` by a vector is
    billed, though no ids were delivered. One of a stage that takes another stage's items has no prompt of its own: the
    rows that it computes for them are whatever its worker states, the same in every share, and belong to no bill."""

    __slots__ = (
        "answered",
        "billed",
        "books",
        "choices",
        "delivered",
        "discarded",
        "elsewhere",
        "prompt",
        "prompt_stated",
        "rows_apart",
        "shares",
    )

    def __init__(self, prompt: int, choices: int, books: dict[str, Book]) -> None:
        self.prompt, self.choices, self.books = prompt, choices, books
        self.prompt_stated: int | None = None
        self.shares: dict[tuple[int, str, int], WorkShare] = {}
        self.delivered = 0
        self.discarded: dict[str, int] = {}
        self.billed: Usage | None = None
        self.answered = self.rows_apart = False
        # The proxy at which an attempt's worker was booked, where it was not this one.
        self.elsewhere: dict[tuple[int, str], str] = {}

    @property
    def rows(self) -> int | None:
        """The rows that a worker computes for the prompt; None while that is not known."""
        return self.prompt_stated if self.rows_apart else self.prompt

    def begin(self, attempt: int, phases: Mapping[str, str], known: Sequence[int] = ()) -> None:
        """Start an attempt on these workers. They are given as many ids of each choice as `known` says."""
        senders = [worker for worker, phase in phases.items() if phase == PREFILL]
        for worker, phase in sorted(phases.items(), key=lambda item: item[1] == DECODE):
            book = self.books.setdefault(worker, Book())
            for choice, given_ids in enumerate(known or [0] * self.choices):
                first = max(given_ids, 1) if phase == DECODE else given_ids
                source = (
                    self.shares[attempt, senders[0], choice] if phase == DECODE and senders and not given_ids else None
                )
                self.shares[attempt, worker, choice] = WorkShare(book, phase, first, first, source)

    def hear(self, attempt: int, worker: str, choice: int, index: int, count: int, stated: int | None = None) -> int:
        """Do what `WorkShare.generate` does, for the share of a worker."""
        return self.shares[attempt, worker, choice].generate(index, count, stated)

    def hear_prompt(self, attempt: int, worker: str, cached: int | None, computed: int | None) -> None:
        computed_tokens = stated_count(computed)
        if computed_tokens is not None:
            self.shares[attempt, worker, 0].hear_prompt(stated_count(cached), computed_tokens)

    def computed_beside(self, cached: int) -> int | None:
        """Return the prompt tokens computed first for this request, beyond those billed as `cached` (found by the first
        admission): cached plus computed tokens of the first share where both are known, less `cached`. An attempt that
        ended in mid-prompt states nothing, and the next one finds its tokens cached. None without a prompt to bill."""
        if self.rows_apart:
            return None
        share_counts = ((share.cached, share.computed) for share in self.shares.values())
        return next(
            (
                max(0, cached_tokens + computed_tokens - cached)
                for cached_tokens, computed_tokens in share_counts
                if computed_tokens is not None
            ),
            None,
        )

    def settle(self, generated: int, delivered: int, reason: str) -> None:
        """Book `delivered` ids as accepted into the response and the rest of those generated as discarded for this
        reason."""
        self.delivered += delivered
        if generated > delivered:
            self.discarded[reason] = self.discarded.get(reason, 0) + generated - delivered

    def take_back(self) -> None:
        """Book as discarded what was accepted into a response that its reader is not given. It is billed nothing."""
        self.answered = False
        if self.delivered:
            self.discarded[UNREAD] = self.discarded.get(UNREAD, 0) + self.delivered
            self.delivered = 0

    def take_over(
        self, attempt: int, worker: str, phase: str, booked: int, cached: int, computed: int | None, proxy: str
    ) -> None:
        """Add what a worker did for this request while it was another proxy's, in whose books it is."""
        self.elsewhere[attempt, worker] = proxy
        self.shares[attempt, worker, 0] = WorkShare(
            Book(), phase, 0, booked, booked=booked, cached=cached, computed=computed
        )

    @property
    def generated(self) -> int:
        return sum(share.generated for share in self.shares.values())

    @property
    def imbalance(self) -> int:
        """Zero, unless some worker stated what it did not send. An open entry is billed nothing yet."""
        wrong = abs(self.generated - self.delivered - sum(self.discarded.values()))
        if self.billed is not None:
            wrong += abs(self.billed.completion_tokens - self.delivered)
        rows = self.rows
        for share in self.shares.values():
            if share.computed is not None and rows is not None:
                wrong += abs(rows - share.cached - share.computed)
        return wrong + (0 if self.prompt_stated is None or rows is None else abs(self.prompt_stated - rows))

    def by_worker(self) -> dict[tuple[int, str], tuple[str, int, int]]:
        """Return for each attempt and worker its phase, the ids booked and the prompt tokens computed, over all
        choices."""
        sums: dict[tuple[int, str], tuple[str, int, int]] = {}
        for (attempt, worker, _), share in self.shares.items():
            _, booked_ids, computed_tokens = sums.get((attempt, worker), ("", 0, 0))
            sums[attempt, worker] = share.phase, booked_ids + share.booked, computed_tokens + (share.computed or 0)
        return sums


@dataclass(slots=True)
class Totals:
    """The sums over all closed requests. A request of which nothing was delivered is not billed, unless
    it was answered otherwise."""

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
        """The ids of closed requests that were discarded."""
        return sum(count for reason, count in self.discarded.items() if reason not in (LATE, SELF_TEST))

    def add(self, entry: LedgerEntry, billed_usage: Usage) -> None:
        self.requests += 1
        if entry.delivered or entry.answered:
            self.prompt_tokens += billed_usage.prompt_tokens
            self.cached_tokens += billed_usage.cached_tokens
            self.completion_tokens += billed_usage.completion_tokens
        self.generated += entry.generated
        self.delivered += entry.delivered
        self.imbalance += entry.imbalance
        for reason, count in entry.discarded.items():
            self.discarded[reason] += count


@dataclass(slots=True)
class LeaseTotals:
    """The sums over all leases that ended, in byte-seconds: granted = held + released + refunded."""

    leases: int = 0
    granted: int = 0
    held: int = 0
    released: int = 0
    refunded: int = 0

    def add(self, granted: int, held: int, released: int, refunded: int) -> None:
        self.leases += 1
        self.granted += granted
        self.held += held
        self.released += released
        self.refunded += refunded

    @property
    def imbalance(self) -> int:
        return abs(self.granted - self.held - self.released - self.refunded)


class Ledger:
    """The accounts of all requests and workers of one proxy. A request is open from its admission until it is closed,
    once."""

    def __init__(self) -> None:
        self.entries: dict[str, LedgerEntry] = {}
        self.closed: dict[str, LedgerEntry] = {}
        self.books: dict[str, Book] = {}
        self.folded = Folded()
        self.totals = Totals()
        self.leases = LeaseTotals()

    def open(self, request: str, prompt: int, choices: int = 1) -> LedgerEntry:
        assert request not in self.entries and request not in self.closed, "request ids are minted once"
        entry = self.entries[request] = LedgerEntry(prompt, choices, self.books)
        return entry

    def close(self, request: str, billed_usage: Usage) -> LedgerEntry:
        """Close a request. Raise KeyError for one that is not open: closing twice is a bug."""
        entry = self.shut(request)
        entry.billed = billed_usage
        self.totals.add(entry, billed_usage)
        return entry

    def set_aside(self, request: str) -> None:
        """Close a self-test: it is in no sum over requests and is not billed. The books of its workers keep what they
        made. Raise KeyError as `close` does."""
        self.totals.discarded[SELF_TEST] += sum(share.set_aside() for share in self.shut(request).shares.values())

    def shut(self, request: str) -> LedgerEntry:
        """Move a request to the closed ones; they are remembered so that its late frames are booked."""
        entry = self.closed[request] = self.entries.pop(request)
        while len(self.closed) > REMEMBERED:
            del self.closed[next(iter(self.closed))]
        return entry

    def stray(self, worker: str, request: str, attempt: int, choice: int, index: int, count: int) -> None:
        """Book ids that no attempt expects: the request is closed or unknown, the attempt dead, or the position
        invalid."""
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

    def stray_prompt(self, worker: str, computed: int | None) -> None:
        """Book a computed prompt whose request has ended."""
        computed_tokens, book = stated_count(computed), self.books.get(worker)
        if computed_tokens is not None and book is not None:
            book.prompts.heard += computed_tokens
            book.prompts.late += computed_tokens

    def registered(self, worker: str, name: str) -> None:
        self.books.setdefault(worker, Book()).registered(name)

    def state(self, worker: str, counters: Mapping[str, int]) -> None:
        if worker in self.books:
            self.books[worker].hear_counters(counters)

    def left(self, worker: str) -> None:
        """Note that a worker is gone, unless it registers again."""
        if worker in self.books:
            self.books[worker].gone = True

    def fold(self) -> list[tuple[str, Book]]:
        """Add the books of workers that are gone, except for the last few, to one sum. Return them: they change no
        more. A book that an open request still needs is kept."""
        gone_workers = [worker for worker, book in self.books.items() if book.gone]
        if len(gone_workers) <= GONE_REMEMBERED:
            return []
        needed_workers = {worker for entry in self.entries.values() for _, worker, _ in entry.shares}
        old = [worker for worker in gone_workers[: len(gone_workers) - GONE_REMEMBERED] if worker not in needed_workers]
        folded_books = [(worker, self.books.pop(worker)) for worker in old]
        for _, book in folded_books:
            self.folded.add(book)
        return folded_books

    @property
    def imbalance(self) -> int:
        """The number of tokens that do not add up: 0, unless a worker, the network or this code breaks the rules."""
        open_books = sum(book.imbalance + book.prompts.imbalance for book in self.books.values())
        return self.totals.imbalance + open_books + self.folded.imbalance + self.leases.imbalance
