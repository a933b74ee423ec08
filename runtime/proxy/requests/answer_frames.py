# SPDX-License-Identifier: Apache-2.0
"""Handling of the workers' messages; those about requests carry tokens, progress or failure."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pontil.runtime.accounting.ledger import Ledger
from pontil.runtime.errors import MalformedFrame, PontilError, RequestError, Unavailable
from pontil.runtime.proxy.admission.model_admissions import ModelAdmissions
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.log_fields import about
from pontil.runtime.proxy.metrics.all_series import BROKEN, FAILED, MOVED, Metrics
from pontil.runtime.proxy.requests.choice_text import BrokenAnswer
from pontil.runtime.proxy.requests.embedding_task import accept_embedding, fits
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.requests.stream import Finished, MessageTurn
from pontil.runtime.proxy.routing.dispatch import Dispatcher
from pontil.runtime.stages.runs.stage_task import accept_output, makes_tokens
from pontil.runtime.timeline.timelines import Timelines
from pontil.runtime.wire.messages import (
    AttemptTimes,
    Embedding,
    Failed,
    Heartbeat,
    Hello,
    Message,
    NodeOutput,
    Progress,
    Step,
    StillHere,
    Tokens,
)
from pontil.runtime.wire.token_batch import HEAD, frame_of, is_plain, row_of, rows_of

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
    """The handlers of messages about requests. `finish` is called with a request whose answer is complete and with the
    worker that sent the last frame, `fail` with a request that cannot be answered. `unobserved` are numbers of tokens
    and the seconds since those before, for the metrics once the tokens are written."""

    requests: Mapping[str, Request]
    registry: Registry
    ledger: Ledger
    metrics: Metrics
    dispatcher: Dispatcher
    admissions: ModelAdmissions
    turn: MessageTurn
    clock: Callable[[], float]
    finish: Callable[[Request, str], None]
    fail: Callable[[Request, PontilError], None]
    unobserved: list[tuple[int, float]] = field(default_factory=list)

    def on_step(self, step: Step) -> None:
        """Take the rows of a step on the fast path, which nearly all fit; pass the rest, in order, to `on_tokens`."""
        try:
            rows = rows_of(step)
        except MalformedFrame as error:
            self.metrics.drop_malformed(step, error)
            return
        now = self.clock()
        rest = [(name, row) for name, row in rows if not self.try_accept(name, step.sender, row, now)]
        for name, row in rest:
            self.on_tokens(frame_of(step, name, row))

    def try_accept(self, name: str, sender: str, row: list[int], now: float) -> bool:
        """Take a row on its token path, if one is open; return whether it was taken."""
        request = self.requests.get(name)
        path = None if request is None else request.token_paths.get((sender, row[1]))
        if request is None or path is None:
            return False
        before = request.last_frame
        if not path.try_accept(row, now):
            return False
        if request.stage is not None and not request.is_clients:
            self.metrics.delivered += 0 if request.trial else len(row) - HEAD
        elif not request.trial:
            self.unobserved.append((len(row) - HEAD, now - before))
            if len(self.unobserved) == 1:
                self.turn.defer(self.observe)
        return True

    def observe(self) -> None:
        for count, seconds in self.unobserved:
            self.metrics.add_tokens(count, seconds, first=False)
        self.unobserved.clear()

    def on_tokens(self, frame: Tokens) -> None:
        if (
            frame.ids
            and is_plain(frame)
            and self.try_accept(frame.request_id, frame.sender, row_of(frame), self.clock())
        ):
            return
        request = self.requests.get(frame.request_id)
        if request is None or not request.expects(frame.sender, frame.attempt):
            self.metrics.dropped.labels("stale").inc()
            self.book_stray(frame)
        elif not makes_tokens(request) or not request.is_sound(frame):
            self.metrics.drop_malformed(frame, "it does not fit its request")
            self.book_stray(frame)
        else:
            self.take_tokens(request, frame)

    def book_stray(self, frame: Tokens) -> None:
        ids = len(frame.ids)
        self.ledger.stray(frame.sender, frame.request_id, frame.attempt, frame.choice, frame.index, ids)
        self.ledger.stray_prompt(frame.sender, frame.computed_tokens)

    def take_tokens(self, request: Request, frame: Tokens) -> None:
        now, before, begun = self.clock(), request.last_frame, request.begun
        try:
            new = request.accept(frame, now)
        except BrokenAnswer as error:
            self.metrics.dropped.labels("broken").inc()
            LOG.error("request %s: %s", request.id, error, extra=about(request))
            self.dispatcher.retry(request, str(error), BROKEN)
            return
        if new and request.prompt_worker is not None:
            self.dispatcher.prompt_done(request)
        self.dispatcher.choices_ended(request)
        if new and not begun:
            request.first_token = now
            self.admissions.queue_of(request).started(request, now)
        if new and not request.trial:
            self.metrics.add_tokens(new, now - (before if begun else request.arrived), not begun, request)
        if isinstance(request.mailbox.end, Finished):
            self.finish(request, frame.sender)

    def on_embedding(self, frame: Embedding) -> None:
        """Take the vector of a text, which ends its request."""
        request = self.requests.get(frame.request_id)
        worker = self.registry.workers.get(frame.sender)
        size = None if worker is None else worker.hello.embedding_size
        if request is None or not request.expects(frame.sender, frame.attempt) or request.embedding is None:
            self.metrics.dropped.labels("stale").inc()
            self.ledger.stray_prompt(frame.sender, frame.computed_tokens)
        elif not fits(frame, request, request.embedding, size):
            self.metrics.dropped.labels("broken").inc()
            self.ledger.stray_prompt(frame.sender, frame.computed_tokens)
            self.dispatcher.retry(request, "a worker sent a vector of another size, or other counts", BROKEN)
        else:
            now = self.clock()
            accept_embedding(request, frame, now)
            self.dispatcher.prompt_done(request)
            self.admissions.queue_of(request).started(request, now)
            self.finish(request, frame.sender)

    def on_node_output(self, frame: NodeOutput) -> None:
        """Take an output of a node, of which the final one ends its request."""
        request = self.requests.get(frame.request_id)
        task = None if request is None else request.stage
        if request is None or task is None or not request.expects(frame.sender, frame.attempt) or makes_tokens(request):
            self.metrics.dropped.labels("stale").inc()
            return
        try:
            accept_output(request, task, frame, self.clock())
        except BrokenAnswer as error:
            self.metrics.dropped.labels("broken").inc()
            LOG.error("request %s: %s", request.id, error, extra=about(request))
            self.dispatcher.retry(request, str(error), BROKEN)
            return
        if isinstance(request.mailbox.end, Finished):
            self.finish(request, frame.sender)

    def on_progress(self, message: Progress) -> None:
        """Take the progress of a prompt's computation, which restarts the request's deadline. What was found cached
        counts, should the worker die before its first token."""
        request = self.requests.get(message.request_id)
        if request is None or not request.expects(message.sender, message.attempt):
            self.metrics.dropped.labels("stale").inc()
        elif not request.begun:
            request.account.state_cached(message.attempt, request.phases[message.sender], message.cached_tokens)
            now = self.clock()
            new = self.dispatcher.advance_prompt(request, message.computed)
            if new:
                request.waits_since = now
                self.admissions.queue_of(request).advanced(request, new, now)

    def on_failed(self, message: Failed) -> None:
        request = self.requests.get(message.request_id)
        if request is None or not request.expects(message.sender, message.attempt):
            self.metrics.dropped.labels("stale").inc()
        elif request.needs(message.sender):
            if message.late:
                self.fail(
                    request,
                    Unavailable(f"{message.reason}: try again later", self.admissions.queue_of(request).deadline),
                )
            elif 400 <= message.status < 500:
                self.fail(request, RequestError(message.reason, status=message.status))
            else:
                moved = message.moved and self.registry.is_leaving(message.sender)
                self.dispatcher.retry(request, message.reason, MOVED if moved else FAILED)


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
