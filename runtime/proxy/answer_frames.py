# SPDX-License-Identifier: Apache-2.0
"""Handling of the workers' messages; those about requests carry tokens, progress or failure."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pontil.runtime.accounting.ledger import Ledger
from pontil.runtime.errors import MalformedFrame, RequestError, Unavailable
from pontil.runtime.proxy.admission.control import ModelAdmissions
from pontil.runtime.proxy.admission.in_flight import InFlight
from pontil.runtime.proxy.dispatch.dispatcher import Dispatcher
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.leases.fleet_leases import FleetLeases
from pontil.runtime.proxy.metrics.all_series import BROKEN, FAILED, MOVED, Metrics
from pontil.runtime.proxy.requests.answer import BrokenAnswer, Finished
from pontil.runtime.proxy.requests.log_fields import about
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.requests.stream import MessageTurn
from pontil.runtime.proxy.requests.text_embedding import TextEmbedding
from pontil.runtime.timeline.timelines import Timelines
from pontil.runtime.wire.codec import HEAD, frame_of, rows_of
from pontil.runtime.wire.messages import (
    AttemptTimes,
    Embedding,
    Failed,
    Heartbeat,
    Hello,
    LeaseState,
    Message,
    NodeOutput,
    Progress,
    Step,
    StillHere,
    Tokens,
)

LOG = logging.getLogger("pontil.proxy")


@dataclass(frozen=True, slots=True)
class MessageRouter:
    """Dispatch of messages for this `incarnation` of the proxy to their handlers. After a batch, what they deferred to
    the end of the `turn` is done, then `handled` is called."""

    incarnation: str
    registry: Registry
    metrics: Metrics
    clock: Callable[[], float]
    send: Callable[[Message], bool]
    handlers: Mapping[type[Message], Callable[[Any], None]]
    turn: MessageTurn
    handled: Callable[[], None]

    def on_messages(self, messages: Sequence[Message]) -> None:
        now, workers = self.clock(), self.registry.workers
        self.turn.is_open = True
        for message in messages:
            # Any message shows that its worker is alive: heartbeats may queue behind tokens.
            if worker := workers.get(message.sender):
                worker.contact.last_heard, worker.contact.reachable = now, True
            handler = self.handlers.get(type(message))
            if handler is None or not isinstance(message, Hello) and message.receiver != self.incarnation:
                self.drop(message)
            else:
                self.metrics.threads.contain("messages", handler, message)
        for work in self.turn.close():
            self.metrics.threads.contain("messages", work)
        self.handled()

    def drop(self, message: Message) -> None:
        self.metrics.dropped.labels("stale").inc()
        if isinstance(message, Heartbeat):
            # Meant for the previous proxy: when it sees another incarnation, the worker registers anew at once.
            self.send(StillHere(self.incarnation, message.sender))


@dataclass(frozen=True, slots=True)
class AnswerFrames:
    """The handlers of messages about requests. `unobserved` are numbers of tokens and the seconds since those before,
    for the metrics once the tokens are written."""

    requests: Mapping[str, Request]
    registry: Registry
    ledger: Ledger
    metrics: Metrics
    dispatcher: Dispatcher
    admissions: ModelAdmissions
    in_flight: InFlight
    clock: Callable[[], float]
    unobserved: list[tuple[int, float]] = field(default_factory=list)

    def expecting(self, message: "Tokens | Embedding | NodeOutput | Progress | Failed") -> Request | None:
        """Return the request that expects this message; None if it comes of an attempt that is over."""
        request = self.requests.get(message.request_id)
        expects = request is not None and request.attempts.expects(message.sender, message.attempt)
        return request if expects else None

    def on_step(self, step: Step) -> None:
        """Take the rows of a step on the fast path, which nearly all fit; pass the rest, in order, to `on_tokens`."""
        try:
            rows = rows_of(step)
        except MalformedFrame as error:
            self.metrics.drop_malformed(step, error)
            return
        now = self.clock()
        slow_rows = [one for one in rows if one[2] or not self.try_accept(one[0], step.sender, one[1], now)]
        for name, row, logits in slow_rows:
            self.on_tokens(frame_of(step, name, row, logits))

    def try_accept(self, name: str, sender: str, row: list[int], now: float) -> bool:
        """Take an ordinary row; return whether it was one."""
        request = self.requests.get(name)
        source = None if request is None else request.attempts.sources.get((sender, row[1]))
        if request is None or source is None:
            return False
        before = request.times.last_frame
        if not source.try_accept(row, now):
            return False
        if source.is_clients:
            self.unobserved.append((len(row) - HEAD, now - before))
            if len(self.unobserved) == 1:
                self.in_flight.turn.defer(self.observe)
        elif not request.trial:
            self.metrics.delivered += len(row) - HEAD
        return True

    def observe(self) -> None:
        for count, seconds in self.unobserved:
            self.metrics.add_tokens(count, seconds, first=False)
        self.unobserved.clear()

    def on_tokens(self, frame: Tokens) -> None:
        request = self.expecting(frame)
        if request is None:
            self.metrics.dropped.labels("stale").inc()
            self.book_stray(frame)
        elif not request.work.makes_tokens or not request.is_sound(frame):
            self.metrics.drop_malformed(frame, "it does not fit its request")
            self.book_stray(frame)
        else:
            self.take_tokens(request, frame)

    def book_stray(self, frame: Tokens) -> None:
        ids = len(frame.ids)
        self.ledger.stray(frame.sender, frame.request_id, frame.attempt, frame.choice, frame.index, ids)
        self.ledger.stray_prompt(frame.sender, frame.computed_tokens)

    def take_tokens(self, request: Request, frame: Tokens) -> None:
        now, times = self.clock(), request.times
        before, had_begun = times.last_frame, times.begun
        try:
            new = request.accept(frame, now)
        except BrokenAnswer as error:
            self.metrics.dropped.labels("broken").inc()
            LOG.error("request %s: %s", request.id, error, extra=about(request))
            self.dispatcher.retry(request, str(error), BROKEN)
            return
        if new:
            request.load.prompt_done(request.share)
        if request.load.choices:
            # The seats of those that have ended are free.
            request.load.seat(request.share, len(request.unended))
        if new and not had_begun:
            times.first_token = now
            self.admissions.queue_of(request).started(request, now)
        if new and request.ticket.is_line:
            self.metrics.delivered += new
        elif new and not request.trial:
            self.metrics.add_tokens(new, now - (before if had_begun else times.arrived), not had_begun, request)
        if isinstance(request.mailbox.end, Finished):
            self.in_flight.finish(request, frame.sender)

    def on_embedding(self, frame: Embedding) -> None:
        """Take the vector of a text, which ends its request."""
        request = self.expecting(frame)
        worker = self.registry.workers.get(frame.sender)
        size = None if worker is None else worker.hello.embedding_size
        work = None if request is None else request.work
        if request is None or not isinstance(work, TextEmbedding):
            self.metrics.dropped.labels("stale").inc()
            self.ledger.stray_prompt(frame.sender, frame.computed_tokens)
        elif not work.takes(frame, size):
            self.metrics.dropped.labels("broken").inc()
            self.ledger.stray_prompt(frame.sender, frame.computed_tokens)
            self.dispatcher.retry(request, "a worker sent a vector of another size, or other counts", BROKEN)
        else:
            now = self.clock()
            work.accept(request, frame, now)
            request.load.prompt_done(request.share)
            self.admissions.queue_of(request).started(request, now)
            self.in_flight.finish(request, frame.sender)

    def on_node_output(self, frame: NodeOutput) -> None:
        """Take an output of a node, of which the final one ends its request."""
        request = self.expecting(frame)
        if request is None or not request.work.makes_outputs:
            self.metrics.dropped.labels("stale").inc()
            return
        try:
            request.work.accept_output(request, frame, self.clock())
        except BrokenAnswer as error:
            self.metrics.dropped.labels("broken").inc()
            LOG.error("request %s: %s", request.id, error, extra=about(request))
            self.dispatcher.retry(request, str(error), BROKEN)
            return
        if isinstance(request.mailbox.end, Finished):
            self.in_flight.finish(request, frame.sender)

    def on_progress(self, message: Progress) -> None:
        """Take the progress of a prompt's computation, which restarts the request's deadline, also where the prompt of
        a stream that has begun is computed again after a death. What was found cached counts, should the worker die
        before its first token."""
        request = self.expecting(message)
        if request is None:
            self.metrics.dropped.labels("stale").inc()
            return
        is_first = not request.times.begun
        if is_first:
            request.account.state_cached(
                message.attempt, request.attempts.phases[message.sender], message.cached_tokens
            )
        now = self.clock()
        if new := request.load.advance(request.share, max(0, len(request.prompt) - message.computed)):
            request.times.waits_since = now
            if is_first:
                self.admissions.queue_of(request).advanced(request, new, now)

    def on_failed(self, message: Failed) -> None:
        request = self.expecting(message)
        if request is None:
            self.metrics.dropped.labels("stale").inc()
        elif self.in_flight.left_by(request, message.sender):
            if message.late:
                self.in_flight.fail(
                    request,
                    Unavailable(f"{message.reason}: try again later", self.admissions.queue_of(request).deadline),
                )
            elif 400 <= message.status < 500:
                self.in_flight.fail(request, RequestError(message.reason, status=message.status))
            else:
                has_moved = message.moved and self.registry.is_leaving(message.sender)
                self.dispatcher.retry(request, message.reason, MOVED if has_moved else FAILED)


@dataclass(frozen=True, slots=True)
class TimesFrames:
    """The handler of what workers tell of their times, which may come after the end of a request."""

    timelines: Timelines
    metrics: Metrics

    def on_times(self, message: AttemptTimes) -> None:
        try:
            if not self.timelines.take(message):
                self.metrics.dropped.labels("stale").inc()
        except MalformedFrame as error:
            self.metrics.drop_malformed(message, error)


@dataclass(frozen=True, slots=True)
class LeaseFrames:
    """The handler of what workers tell of their leases."""

    leases: FleetLeases
    metrics: Metrics

    def on_state(self, message: LeaseState) -> None:
        try:
            self.leases.on_state(message)
        except MalformedFrame as error:
            self.metrics.drop_malformed(message, error)
