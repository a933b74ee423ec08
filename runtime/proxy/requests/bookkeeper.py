# SPDX-License-Identifier: Apache-2.0
"""Records of requests beyond their answers: the ledger, and the usage log where there is one."""

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pontil.runtime.accounting.book import Book
from pontil.runtime.accounting.counts import Usage
from pontil.runtime.accounting.ledger import Ledger
from pontil.runtime.accounting.usage_file import FileWriter, UsageFile, open_to_read
from pontil.runtime.accounting.usage_log import UsageLog
from pontil.runtime.accounting.usage_tables import (
    CLOSED,
    OPEN,
    BatchOutcome,
    ForgottenBatch,
    LeaseRow,
    LostLeases,
    LostProxy,
    LostRequest,
    ProxyRow,
    RequestRow,
    ShareRow,
    TakenOver,
    UsageRow,
    WorkerRow,
)
from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.errors import Unavailable, UsageLogError
from pontil.runtime.proxy.requests.generation import Generation
from pontil.runtime.proxy.requests.log_fields import about
from pontil.runtime.proxy.requests.prompt_reuse import PromptReuse
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.threads import ThreadFailures

# Seconds between two writes of the state of open requests (A12).
CHECKPOINT = 0.1
# The same without a usage log, where only old books are folded.
FOLDING = 2.0
LOG = logging.getLogger("pontil.requests")


class Bookkeeper:
    """The accounting of every request of one proxy. Raises UsageLogError for a log that cannot be used."""

    def __init__(
        self,
        config: ProxyConfig,
        incarnation: str,
        clock: Callable[[], float],
        threads: ThreadFailures | None = None,
        kept: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self.config, self.incarnation, self.clock = config, incarnation, clock
        self.ledger = Ledger()
        self.reuse = PromptReuse()
        # True if another proxy goes on with what this one leaves, although none runs when it ends: its successor may.
        self.has_successor = False
        self.log = None
        if config.usage_log is not None:
            file = open_file(config, incarnation, kept, lambda: self.has_successor)
            self.log = UsageLog(file, threads)
        self.started = time.time()
        self.open: dict[str, Request] = {}
        self.seen: dict[str, tuple[int, bool]] = {}
        # The rows of the workers as they were posted last: nothing is written while nothing happens.
        self.posted: dict[str, WorkerRow] = {}
        if self.log is not None:
            self.log.post([self.proxy_row(OPEN)])

    def admit(self, request: Request) -> None:
        """Write the row of a new request, whose entry is in the ledger already."""
        work, ticket = request.work, request.ticket
        if isinstance(work, Generation) and request.is_clients:
            self.reuse.begin(ticket.caller, ticket.cache_salt, work.prompt, work.parts)
        if self.log is not None:
            self.open[request.id] = request
            self.log.post([self.open_row(request)])

    def close(self, request: Request, billed: Usage, finish: str) -> None:
        self.ledger.close(request.id, billed)
        is_answered = request.is_clients and (request.complete or request.times.begun)
        if is_answered and isinstance(request.work, Generation):
            self.reuse.end(request.ticket.caller, billed.prompt_tokens, billed.cached_tokens)
        LOG.info("%s", summary(request, billed, finish, self.clock()), extra=about(request))
        if self.log is not None:
            self.open.pop(request.id, None)
            self.seen.pop(request.id, None)
            row = self.request_row(request, CLOSED, billed, finish)
            request.receipt = self.log.post([row, *share_rows(request), self.proxy_row(OPEN)], wanted=True)

    def close_with(self, close: Callable[[], None], rows: Sequence[BatchOutcome]) -> "Future[None] | None":
        """Have `close` close requests, and write their rows and these in one transaction. Return the receipt, None
        where the log cannot be written now: they wait."""
        assert self.log is not None, "outcomes are kept in the usage log"
        with self.log.lock:
            close()
            return self.log.post(rows, wanted=True)

    def forget_batch(self, batch: str) -> None:
        """Forget what became of a batch's lines. Their bills stay."""
        if self.log is not None:
            self.log.post([ForgottenBatch(batch)])

    def note_lease(self, row: LeaseRow) -> None:
        """Write the row of a lease; what became of one that ended is added to the sums, once."""
        if row.state == CLOSED:
            self.ledger.leases.add(row.granted, row.held, row.released, row.refunded)
        if self.log is not None:
            self.log.post([row, self.proxy_row(OPEN)] if row.state == CLOSED else [row])

    def lose_leases(self, kept: Collection[str]) -> None:
        """Close the open rows of leases whose proxies are gone, but for those `kept`."""
        if self.log is not None:
            self.log.post([LostLeases(json.dumps(list(kept)))])

    def hand_over(self, request: Request) -> None:
        """Let go of a request that another proxy will go on with. Its row stays open, and is the other one's next."""
        self.ledger.shut(request.id)
        if self.log is not None:
            self.open.pop(request.id, None)
            self.seen.pop(request.id, None)
            self.log.post([self.open_row(request), *share_rows(request, self.incarnation)])

    def take_over(self, request: Request) -> None:
        """Go on with the row of a request that another proxy had begun."""
        if self.log is not None:
            self.open[request.id] = request
            row = self.open_row(request)
            self.log.post([TakenOver(request.id), row, *share_rows(request)])

    def lose_request(self, request_id: str) -> None:
        """Close the row of a request that nobody goes on with."""
        if self.log is not None:
            self.log.post([LostRequest(request_id)])

    def open_among(self, requests: Collection[str]) -> set[str]:
        """Return the requests on which the usage log has no last word. Reads the file: call it in a thread. Raises
        Unavailable where it cannot be read now."""
        if self.config.usage_log is None or not requests:
            return set(requests)
        query = "SELECT id FROM requests WHERE id IN (SELECT value FROM json_each(?)) AND state != ?"
        try:
            with closing(open_to_read(Path(self.config.usage_log))) as database:
                rows = database.execute(query, (json.dumps(list(requests)), OPEN)).fetchall()
        except (sqlite3.Error, UsageLogError) as error:
            raise Unavailable(f"the usage log cannot be read now ({error}): try again later") from None
        return set(requests).difference(request for (request,) in rows)

    def lose(self, proxy: str, kept: Collection[str], then: Callable[[], None]) -> None:
        """Close the open requests of a proxy that is gone, but for those `kept`, and then do this."""
        if self.log is not None:
            self.log.post([LostProxy(proxy, json.dumps(list(kept)))])
        self.when_written(then)

    def when_written(self, work: Callable[[], None]) -> None:
        """Do this once all that was said here is on the disk, however long that takes; at once without a usage log."""
        if self.log is None:
            work()
        else:
            self.log.when_written(work)

    @property
    def complaint(self) -> str | None:
        """The reason why usage is not written now, in a sentence, or None."""
        return None if self.log is None else self.log.complaint

    @property
    def pause(self) -> float:
        """Seconds from one checkpoint to the next."""
        return FOLDING if self.log is None else CHECKPOINT

    def checkpoint(self) -> None:
        """Write the changes of the open requests, and the counts that the workers have stated: in one group, so that
        they agree."""
        worker_books = self.ledger.fold()
        if self.log is None:
            return
        if self.log.failing:
            # All are written anew: some may have been given up.
            self.posted.clear()
        rows: list[UsageRow] = [self.worker_row(worker, book) for worker, book in worker_books]
        for request in self.open.values():
            progress = request.entry.delivered + sum(request.entry.discarded.values()), request.mailbox.is_read
            if self.seen.get(request.id) != progress:
                self.seen[request.id] = progress
                rows += [self.open_row(request), *share_rows(request)]
        books = {worker: self.worker_row(worker, book) for worker, book in self.ledger.books.items()}
        rows += [row for worker, row in books.items() if self.posted.get(worker) != row]
        self.posted = books
        if rows:
            self.log.post(rows)

    @property
    def owes_rows(self) -> bool:
        """True if rows are not on the disk: what they say the last of may be open there."""
        return self.log is not None and (self.log.waiting > 0 or self.log.given_up > 0)

    def end(self) -> None:
        """Write the final state and close the log, once every request is closed."""
        if self.log is not None:
            self.checkpoint()
            self.log.post([self.proxy_row(CLOSED)])
            self.log.close()

    def sums(self) -> dict[str, Any]:
        """Return the ledger's sums over closed requests, with its imbalance."""
        discards = dict(self.ledger.totals.discarded)
        extra = {"open": len(self.ledger.entries), "imbalance": self.ledger.imbalance, "discarded_by_reason": discards}
        return asdict(self.proxy_row(OPEN)) | extra

    def open_row(self, request: Request) -> RequestRow:
        """Return the row of a request that stays as it is if this process dies now: nothing is billed of an answer of
        which its reader has no part."""
        row = self.request_row(request, OPEN, request.usage, None)
        if request.mailbox.is_read:
            return row
        return replace(row, completion_tokens=0, delivered=0, discarded=row.discarded + row.delivered)

    def request_row(self, request: Request, state: str, usage: Usage, finish: str | None) -> RequestRow:
        entry, times, attempts = request.entry, request.times, request.attempts
        age, first = self.clock() - times.arrived, times.first_token
        return RequestRow(
            request.id,
            self.incarnation,
            request.id.rpartition("-")[0],
            request.ticket.caller,
            request.model or self.config.served_model_name,
            attempts.route_name,
            state,
            finish,
            request.params.n,
            attempts.number + 1,
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
            entry.generated,
            entry.delivered,
            sum(entry.discarded.values()),
            time.time() - age,
            times.queued,
            None if first is None else first - times.arrived,
            None if state == OPEN else age,
            entry.computed_beside(usage.cached_tokens),
            None if request.is_clients else request.work.stage,
            request.work.image_tokens,
        )

    def worker_row(self, worker: str, book: Book) -> WorkerRow:
        prompts = book.prompts
        return WorkerRow(
            worker,
            self.incarnation,
            book.name,
            book.before,
            book.stated_here,
            book.heard_then,
            book.missing,
            book.heard,
            book.booked,
            book.late,
            book.unheard,
            prompts.stated_here,
            prompts.heard_then,
            prompts.missing,
            prompts.heard,
            prompts.booked,
            prompts.late,
        )

    def proxy_row(self, state: str) -> ProxyRow:
        sums, leases = self.ledger.totals, self.ledger.leases
        return ProxyRow(
            self.incarnation,
            self.started,
            state,
            sums.requests,
            sums.prompt_tokens,
            sums.cached_tokens,
            sums.completion_tokens,
            sums.generated,
            sums.delivered,
            sums.settled_otherwise,
            self.config.name,
            self.config.shared_folder,
            leases.leases,
            leases.granted,
            leases.held,
            leases.released,
            leases.refunded,
        )


def open_file(
    config: ProxyConfig, incarnation: str, kept: Callable[[], Collection[str]], has_successor: Callable[[], bool]
) -> UsageFile:
    """Open the usage log. Proxies that share a folder write to it together."""
    name, folder, days = config.name, config.shared_folder, config.usage_log_days

    def left() -> Collection[str]:
        return kept() if has_successor() else ()

    writer = FileWriter(incarnation, name, folder, kept, days, left, has_successor)
    return UsageFile(Path(str(config.usage_log)), writer)


def summary(request: Request, billed: Usage, finish: str, now: float) -> str:
    """Return one line about a request that ended. Its two times to first token are from arrival and from scheduling
    (B10)."""
    at, reports = request.times, request.reports
    first = None if at.first_token is None else at.first_token - at.arrived
    scheduled_ttft = None if first is None or at.queued is None else first - at.queued
    times = {"queue": at.queued, "first_token": first, "scheduled_first_token": scheduled_ttft}
    shown_times = [f"{name}={'-' if time is None else f'{time:.3f}'}" for name, time in times.items()]
    return (
        f"request {request.id} key={request.ticket.caller} finish={finish} route={request.attempts.route_name} "
        f"attempts={request.attempts.number + 1} "
        f"prompt={billed.prompt_tokens} cached={billed.cached_tokens} completion={billed.completion_tokens} "
        f"drafts={reports.accepted}/{reports.drafted} {' '.join(shown_times)} total={now - at.arrived:.3f}"
    )


def share_rows(request: Request, proxy: str | None = None) -> list[ShareRow]:
    """Return the shares of its workers. Those of another proxy's attempts name that one, the rest `proxy`: None stands
    for the proxy of the request."""
    elsewhere = request.entry.elsewhere
    return [
        ShareRow(request.id, worker, attempt, phase, count, computed_tokens, elsewhere.get((attempt, worker)) or proxy)
        for (attempt, worker), (phase, count, computed_tokens) in request.entry.by_worker().items()
    ]
