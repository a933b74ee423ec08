# SPDX-License-Identifier: Apache-2.0
"""The requests in flight, the only code that ends them, and the seats of those whose readers take nothing
(docs/decisions/069)."""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from pontil.runtime.accounting.counts import PREFILL, Usage
from pontil.runtime.errors import PontilError, Unavailable
from pontil.runtime.proxy.admission.control import ModelAdmissions
from pontil.runtime.proxy.admission.model_waking import ModelWaking
from pontil.runtime.proxy.dispatch.dispatcher import Dispatcher
from pontil.runtime.proxy.metrics.all_series import Metrics
from pontil.runtime.proxy.requests.answer import Finished
from pontil.runtime.proxy.requests.bookkeeper import Bookkeeper
from pontil.runtime.proxy.requests.request import Request, Work
from pontil.runtime.proxy.requests.stream import MessageTurn, Stream
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.timeline import timeline
from pontil.runtime.timeline.timeline import Gaps, Timeline, TimelineRow
from pontil.runtime.timeline.timelines import Timelines, log_slow
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.tracing.open_tracer import open_tracer

FAILED, LEFT = "error", "cancelled"
# The route of a request that did not come by HTTP.
NO_PATH = "-"
# The states of requests that ended otherwise than by their answer's end, by the label of that.
STATES = {FAILED: timeline.FAILED, LEFT: timeline.CANCELLED, "handed_over": timeline.CANCELLED}


class InFlight:
    """The admitted requests that have not ended. `open` adds one to `requests`, where it stays until exactly one call
    of `finish` or `end` closes its mailbox, of which its work hears. `tokenizers` are those of the models that
    generate, by the keys of their workers, the first one's under None."""

    def __init__(
        self,
        incarnation: str,
        tokenizers: Mapping[str | None, Tokenizer],
        dispatcher: Dispatcher,
        admissions: ModelAdmissions,
        books: Bookkeeper,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self.incarnation, self.tokenizers, self.dispatcher = incarnation, tokenizers, dispatcher
        self.admissions, self.books, self.metrics, self.clock = admissions, books, metrics, clock
        self.requests: dict[str, Request] = {}
        self.waking = ModelWaking(dispatcher.registry, self.requests, clock, dispatcher.config.first_byte_timeout)
        # Called with each request whose answer is complete.
        self.on_finish: Callable[[Request], None] = lambda request: None
        self.turn, self.slow_readers = MessageTurn(), SlowReaders(self)
        self.timelines = Timelines(clock, metrics.threads)
        if dispatcher.config.slow_log is not None:
            self.timelines.on_complete(log_slow, dispatcher.config.slow_log)
        self.tracer = open_tracer(dispatcher.config, metrics.spans, metrics.threads, clock)
        if self.tracer is not None:
            self.timelines.on_complete(self.tracer.take)

    def open(self, ticket: Ticket, work: Work, *, trial: bool = False) -> Request:
        """Create a request, with the ticket's name as a part of its id. A `trial` is shown and billed to nobody."""
        request_id = f"{ticket.name or ''}-{secrets.token_hex(8)}".removeprefix("-")
        return self.add(request_id, ticket, work, trial=trial)

    def add(self, request_id: str, ticket: Ticket, work: Work, *, trial: bool = False) -> Request:
        request = self.requests[request_id] = Request.start(
            request_id, work, self.tokenizer_of(work.group), self.clock(), ticket, self.books.ledger
        )
        self.record(request)
        if ticket.whole is not None:
            ticket.whole.add()
            request.mailbox.whole = ticket.whole
        request.trial = trial
        request.recorder.is_hidden = request.recorder.is_hidden or trial
        work.opened(request)
        return request

    def tokenizer_of(self, group: str | None) -> Tokenizer:
        """Return the tokenizer of a model that generates. Nobody reads the text of what other groups answer."""
        return self.tokenizers.get(group, self.tokenizers[None])

    def record(self, request: Request) -> None:
        """Begin to record where a request's time goes."""
        arrival = request.ticket.received
        request.recorder.admit(self.clock(), arrival, partial(row_of, request, self.model))
        self.timelines.admit(request.id, request.recorder)
        if self.tracer is not None:
            request.trace = self.tracer.join(request.id, request.params, arrival)

    def stream(self, requests: Sequence[Request]) -> Stream:
        """Return the answers of these requests to one reader, who cancels them by leaving."""
        return Stream(requests, self.cancel, self.turn)

    def start(self) -> None:
        if self.tracer is not None:
            self.tracer.export.start()

    async def close(self) -> None:
        """Export the traces of requests that have ended, as far as that takes no time."""
        if self.tracer is not None:
            self.timelines.tell_rest()
            await asyncio.to_thread(self.tracer.export.close)

    @property
    def model(self) -> str:
        return self.dispatcher.config.served_model_name

    def finish(self, request: Request, last_sender: str | None = None) -> None:
        """End a request whose answer is complete. Its other worker is told: prefill may have ended the answer alone,
        and what decode told of the end of a pull may have been lost with it."""
        del self.requests[request.id]
        self.dispatcher.unseat(request)
        end = request.mailbox.end
        assert isinstance(end, Finished)
        for message in request.cancels(self.incarnation):
            if message.receiver != last_sender:
                self.dispatcher.cancels.post(message.receiver, message)
        self.close_account(request, end.reason)
        request.work.ended(request)
        self.on_finish(request)

    def left_by(self, request: Request, incarnation: str, *, drained: bool = False) -> bool:
        """Take note that a worker has left a request; return whether the attempt is broken by that. If it is not, what
        was held for words of this worker is given to its reader."""
        is_broken = request.needs(incarnation, drained=drained)
        if not is_broken and request.mailbox.held and request.attempts.phases.get(incarnation) == PREFILL:
            self.give_held(request)
        return is_broken

    def give_held(self, request: Request) -> None:
        """Give the reader of a request what was held for words that will not come."""
        request.give_held()
        if request.complete:
            self.finish(request)

    def cancel(self, request: Request) -> None:
        """End a request whose client has disconnected."""
        self.end(request, Unavailable("the request was cancelled"), LEFT)

    def fail(self, request: Request, error: PontilError) -> None:
        """End a request that cannot be served. Where it could be later and nobody has heard of it now, it is left to
        who comes back for it; who is there already is told so. An answer of which only the end is held is given."""
        is_whole = not request.unended and request.params.prompt_logprobs is None
        if is_whole and request.id in self.requests:
            self.give_held(request)
            return
        journal = request.journal if request.id in self.requests and isinstance(error, Unavailable) else None
        if journal is not None and journal.await_reader(FAILED):
            request.mailbox.close(error)
        else:
            self.end(request, error, FAILED)

    def end(self, request: Request, error: PontilError, label: str) -> None:
        """End a request with its answer incomplete, and cancel it at its workers. Does nothing for one that has
        ended."""
        if self.requests.pop(request.id, None) is None:
            return
        self.dispatcher.withdraw(request)
        request.mailbox.close(error)
        self.close_account(request, label)
        request.work.ended(request)
        self.admissions.dispatch()

    def hand_over(self, request: Request) -> None:
        """Let go of a request that another proxy will go on with. Does nothing for one that has ended."""
        if self.requests.pop(request.id, None) is None:
            return
        self.dispatcher.withdraw(request)
        self.admissions.of(request).leave(request)
        self.books.hand_over(request)
        if request.mailbox.whole is not None:
            # The other parts of the answer are billed without it.
            request.mailbox.whole.end(lambda: None, failed=False)
        request.work.ended(request)
        self.keep_timeline(request, "handed_over", request.usage)
        self.admissions.dispatch()

    def take_over(self, request: Request) -> None:
        """Go on with a request that another proxy had begun, as after the death of a worker. Its entry is in the ledger
        already."""
        self.requests[request.id] = request
        self.record(request)
        self.admissions.of(request).enter_again(request)
        self.books.take_over(request)
        request.work.opened(request)
        if request.unended:
            self.dispatcher.enlist(request)
        else:
            self.give_held(request)

    def close_account(self, request: Request, label: str) -> None:
        if request.trial:
            self.books.ledger.set_aside(request.id)
            self.keep_timeline(request, label, request.billed)
            return
        if not request.is_joined:
            self.admissions.of(request).leave(request)
        if (whole := request.mailbox.whole) is None:
            self.settle(request, label)
        else:
            whole.end(partial(self.settle, request, label), failed=label == FAILED)

    def settle(self, request: Request, label: str) -> None:
        """Bill a request that has ended: nothing of an answer that its reader is not given."""
        usage, finish, whole = request.billed, request.finish or label, request.mailbox.whole
        if whole is not None and whole.failed:
            request.entry.take_back()
            usage, finish, label = replace(usage, completion_tokens=0, audio_tokens=0), FAILED, FAILED
        if request.journal is not None:
            request.journal.close(usage, finish)
        self.books.close(request, usage, finish)
        if request.journal is not None:
            request.journal.let_go()
        self.metrics.add_request(request, usage, label)
        if self.dispatcher.forecast is not None:
            self.dispatcher.forecast.judge(request)
        self.keep_timeline(request, label, usage)

    def keep_timeline(self, request: Request, label: str, usage: Usage) -> None:
        now = self.clock()
        row = last_row(request, self.model, label, usage, now)
        self.timelines.end(row, now)
        if self.tracer is not None and request.recorder.is_hidden:
            # Nobody is told of its parts, but it belongs to the sums of its trace.
            self.tracer.take(Timeline(row, (), (), Gaps(0.0), None))


# A reader that has taken nothing for so long, with so many tokens behind what its connection's buffer holds, is slow.
UNTAKEN_SECONDS = 3.0
UNTAKEN_TOKENS = 32
# Attempts of one request that end so: each has its prompt, and what was said, computed again.
MOST_SUSPENSIONS = 16


class SlowReaders:
    """Suspends requests whose readers take nothing while others wait for a seat, and goes on with each once its reader
    takes something. Call `tick` a few times a second."""

    def __init__(self, in_flight: InFlight) -> None:
        self.requests, self.clock = in_flight.requests, in_flight.clock
        self.dispatcher, self.admissions = in_flight.dispatcher, in_flight.admissions
        # The times since which readers take nothing, by request.
        self.untaken: dict[str, float] = {}

    def tick(self) -> None:
        now = self.clock()
        untaken = [request for request in self.requests.values() if request.mailbox.untaken]
        self.untaken = {request.id: self.untaken.get(request.id, now) for request in untaken}
        for request in list(self.dispatcher.suspended.values()):
            if not request.mailbox.untaken:
                self.dispatcher.go_on(request)
        for request in untaken:
            if now - self.untaken[request.id] >= UNTAKEN_SECONDS and self.may_wait(request) and self.is_in_way(request):
                self.admissions.queue_of(request).set_aside(request, now)
                self.dispatcher.suspend(request, "its reader takes nothing, and others wait for a seat")

    def may_wait(self, request: Request) -> bool:
        """Return whether it can go on later: it is a client's answer, in tokens, that one worker or pair makes."""
        plain = request.is_clients and request.work.may_pause and request.times.begun
        answers = plain and request.mailbox.tokens >= UNTAKEN_TOKENS and bool(request.attempts.phases)
        return answers and not request.complete and request.attempts.excused < MOST_SUSPENSIONS

    def is_in_way(self, request: Request) -> bool:
        """Return whether others wait for a seat where it has its own, here or in its worker. One that waits here for
        its prompt's turn gains nothing by it, nor does a prompt that is computed for another worker need a seat."""
        waiting = len(self.admissions.queue_of(request)) > 0
        holders = [worker for worker in request.load.workers if request.attempts.phases[worker.hello.sender] != PREFILL]
        return any(worker.taken + waiting > worker.seats for worker in holders)


def row_of(request: Request, model: str, now: float) -> TimelineRow:
    """Return the line of an open request, for this model unless it is for another one."""
    return made_row(request, model, timeline.OPEN, None, request.usage, now)


def last_row(request: Request, model: str, label: str, usage: Usage, now: float) -> TimelineRow:
    """Return the line of a request that has ended with this label."""
    return made_row(request, model, STATES.get(label, timeline.COMPLETE), request.finish or label, usage, now)


def made_row(request: Request, model: str, state: str, finish: str | None, usage: Usage, now: float) -> TimelineRow:
    recorder, first = request.recorder, first_token_of(request)
    arrival = recorder.received
    since_epoch = recorder.admitted_at if arrival is None else arrival.since_epoch
    return TimelineRow(
        request.id, since_epoch, request.model or model,
        NO_PATH if arrival is None else arrival.route, request.ticket.caller, state, finish, usage.prompt_tokens,
        usage.cached_tokens, usage.completion_tokens, request.attempts.number + 1,
        None if first is None else max(0.0, first - recorder.since), max(0.0, now - recorder.since),
        () if request.attempts.route is None else tuple(worker.name for worker in request.attempts.route.workers),
        request.work.stage,
        None if request.trace is None else request.trace.trace_id,
    )  # fmt: skip


def first_token_of(request: Request) -> float | None:
    """Return when the first token came, of those since the request was received here: another proxy may have begun
    it."""
    first, recorder = request.times.first_token, request.recorder
    if first is None or first >= recorder.since:
        return first
    recorder.gaps.settle()
    return recorder.gaps.first
