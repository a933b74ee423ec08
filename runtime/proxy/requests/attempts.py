# SPDX-License-Identifier: Apache-2.0
"""The attempts to serve one request, and what workers report of them beside its answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pontil.runtime.accounting.book import stated_count
from pontil.runtime.accounting.counts import PREFILL
from pontil.runtime.foundation.fair_share import FairShare
from pontil.runtime.proxy.fleet.registered_worker import RegisteredWorker
from pontil.runtime.proxy.requests.answer import AnswerTimes, TokenSource
from pontil.runtime.proxy.routing.policy import Route, Team
from pontil.runtime.wire.messages import Tokens


@dataclass(slots=True)
class RequestLoad:
    """The load of its `workers`, as they were registered when the request was sent to them: it is in flight at each,
    with so many `choices`, and `prompt_worker` has yet to compute `uncomputed` tokens of its prompt.

    Conservation: what was added to a worker is taken off when it is let go of."""

    workers: tuple[RegisteredWorker, ...] = ()
    choices: int = 0
    prompt_worker: str | None = None
    uncomputed: int = 0

    def take(self, workers: Sequence[RegisteredWorker]) -> None:
        self.workers = tuple(workers)
        for worker in self.workers:
            worker.in_flight += 1

    def let_go(self, share: FairShare) -> None:
        for worker in self.workers:
            worker.in_flight -= 1
        self.seat(share, 0)
        self.prompt_done(share)
        self.workers = ()

    def seat(self, share: FairShare, choices: int) -> None:
        """Count so many of its choices at its workers: those that have not ended."""
        for worker in self.workers if choices != self.choices else ():
            worker.seat(share, choices - self.choices)
        self.choices = choices

    def owe(self, share: FairShare, prompt_worker: str, tokens: int) -> None:
        """Add the part of the prompt that is to be computed to the load of the worker that does it."""
        self.prompt_worker = prompt_worker
        self.set_uncomputed(share, tokens)

    def advance(self, share: FairShare, left: int) -> int:
        """Note that at most so many tokens of the prompt are left; return how many are computed since."""
        if self.prompt_worker is None:
            return 0
        new = max(0, self.uncomputed - left)
        self.set_uncomputed(share, self.uncomputed - new)
        return new

    def prompt_done(self, share: FairShare) -> None:
        """Take the prompt off its worker's load: it is computed, or no longer wanted."""
        self.advance(share, 0)
        self.prompt_worker = None

    def set_uncomputed(self, share: FairShare, tokens: int) -> None:
        before, self.uncomputed = self.uncomputed, tokens
        for worker in self.workers:
            if worker.hello.sender == self.prompt_worker:
                worker.owe(share, tokens - before, (tokens > 0) - (before > 0))


LONGEST_REASON = 300
# Attempts that may end through no fault of their workers before each of them counts as a fault, too.
MOST_EXCUSED = 64
# Route name of a request that was never dispatched.
NO_ROUTE = "-"


@dataclass(frozen=True, slots=True)
class Expectation:
    """The seconds that were expected of an attempt as it was sent: to its first token, and for each after it; with the
    roles of the workers for both (runtime/proxy/balance/forecast.py)."""

    first_token: float
    per_token: float
    prompt_role: str
    answer_role: str


@dataclass(slots=True)
class Attempts:
    """Attempts one after another, by `number`. Before the first and between two of them `phases` is empty. `broken` are
    the teams that failed; `excused` counts attempts that ended through no fault. `sent` is the time when the attempt
    was dispatched, `stranded_at` when the last one that reached its workers broke; at `lease_awaited_at` one could have
    begun for the first time that has waited for a lease. `heard` holds the pairs of phase and choice for which a frame
    has arrived, `sources` each worker's part in each choice."""

    sent: float
    number: int = -1
    route: Route | None = None
    phases: dict[str, str] = field(default_factory=dict)
    broken: set[Team] = field(default_factory=set)
    excused: int = 0
    stranded_at: float | None = None
    lease_awaited_at: float | None = None
    heard: set[tuple[str, int]] = field(default_factory=set)
    sources: dict[tuple[str, int], TokenSource] = field(default_factory=dict)
    # Of the first one, where times are predicted.
    expected: Expectation | None = None

    def begin(self, route: Route, now: float) -> None:
        self.number += 1
        self.route, self.phases, self.sent = route, route.phases, now
        self.heard.clear()
        self.sources.clear()

    def end(self, now: float, *, excused: bool) -> None:
        """End the attempt, which broke; `excused` if no worker failed, and the same workers may serve the next."""
        if excused:
            self.excused += 1
        else:
            self.broken.add(tuple(self.phases))
        self.phases = {}
        if self.stranded_at is None:
            self.stranded_at = now
        self.sources.clear()

    @property
    def faults(self) -> int:
        """Number of attempts that broke; valid between two attempts."""
        return self.number + 1 - min(self.excused, MOST_EXCUSED)

    @property
    def route_name(self) -> str:
        """Name of the current or last route."""
        return NO_ROUTE if self.route is None else self.route.name

    @property
    def has_heard_prompt(self) -> bool:
        """True once the worker was heard that computes the prompt: its other one may be heard before, of all of the
        answer."""
        return PREFILL not in self.phases.values() or any(phase == PREFILL for phase, _ in self.heard)

    def expects(self, sender: str, attempt: int) -> bool:
        return attempt == self.number and sender in self.phases


@dataclass(frozen=True, slots=True)
class PullReport:
    """A decode worker's report of the pull of a prompt's KV blocks: bytes, seconds of copying if credible, and the
    error if the pull failed."""

    bytes: int = 0
    seconds: float | None = None
    error: str | None = None


@dataclass(slots=True)
class WorkerReports:
    """The reports of workers: of draft tokens, how many there were and how many right, of the pull of the prompt's KV,
    and of the blocks in which the last worker keeps that for another one."""

    drafted: int = 0
    accepted: int = 0
    pulled: PullReport = PullReport()
    kept_blocks: list[int] | None = None

    def note(self, frame: Tokens, budget: int) -> None:
        """Add up draft tokens, for the request's summary only (B9): drafts are never billed."""
        self.kept_blocks = frame.kept_blocks
        if frame.draft_tokens is not None:
            draft_tokens = min(stated_count(frame.draft_tokens) or 0, budget)
            self.drafted += draft_tokens
            self.accepted += min(stated_count(frame.accepted_draft_tokens) or 0, draft_tokens, len(frame.ids))

    def note_pull(self, frame: Tokens, times: AnswerTimes, now: float) -> None:
        if frame.pulled_bytes is not None:
            seconds = None if frame.pulled_seconds is None else times.credible(frame.pulled_seconds, now)
            error = None if frame.pull_error is None else frame.pull_error[:LONGEST_REASON]
            self.pulled = PullReport(stated_count(frame.pulled_bytes) or 0, seconds, error)
