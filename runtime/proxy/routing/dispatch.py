# SPDX-License-Identifier: Apache-2.0
"""Dispatch of requests to workers, and retries when an attempt breaks. Attempts begin only here (C15)."""

import logging
import secrets
from collections import deque
from collections.abc import Callable, Sequence

from pontil.runtime.accounting.counts import DECODE, PREFILL
from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.log_fields import about
from pontil.runtime.proxy.metrics.all_series import MOVED, UNREACHABLE, Metrics
from pontil.runtime.proxy.requests.embedding_task import embed_message
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.routing.policy import SPARE_SEATS, Route, WorkerLoad, next_route, plan
from pontil.runtime.proxy.routing.prefix_lookup import PrefixLookup
from pontil.runtime.proxy.routing.recent_work import RecentWork
from pontil.runtime.proxy.routing.remote_kv import claims
from pontil.runtime.stages.runs.stage_task import is_joined, makes_tokens, stage_messages
from pontil.runtime.wire.links.outbox import Outbox
from pontil.runtime.wire.messages import Embed, Message, NodeTask, Submit

LOG = logging.getLogger("pontil.proxy")
# Length of a transfer's secret.
SECRET_BYTES = 32
# The causes for which an attempt does not count as a fault.
EXCUSED = (MOVED, UNREACHABLE)


class Dispatcher:
    """The sender of requests to workers. `stranded` requests, which no worker serves, wait until one registers, and
    `suspended` ones until their readers take something.

    `give_up` is called with a request that gets no other attempt, and the reason. `send` returns whether a message was
    sent. `launched` is called with a request of a stage whose attempt was sent to all of its workers.
    """

    def __init__(
        self,
        config: ProxyConfig,
        incarnation: str,
        registry: Registry,
        metrics: Metrics,
        clock: Callable[[], float],
        send: Callable[[Message], bool],
        give_up: Callable[[Request, str], None],
    ) -> None:
        self.config, self.incarnation, self.registry, self.metrics = config, incarnation, registry, metrics
        self.clock, self.send, self.give_up = clock, send, give_up
        self.lookup = PrefixLookup(registry, config.routing == "cache")
        self.recent_work = RecentWork(registry)
        self.stranded: dict[str, Request] = {}
        # Requests without an attempt, until their readers take what there is.
        self.suspended: dict[str, Request] = {}
        # Stranded requests that may be placed now, and whether a call is placing them: an attempt that fails at once
        # strands its request anew, which then waits here for its turn instead of recursing.
        self.due: deque[Request] = deque()
        self.placing = False
        # Cancels are kept until they are sent: without one a worker would compute for nothing. So is what a worker is
        # told about the other stages of a run: without it the worker would wait for nothing.
        self.cancels = Outbox(lambda worker, message: self.send(message))
        self.launched: Callable[[Request], None] = ignored

    def route(self, request: Request) -> Route | None:
        """Return the route for the next attempt of a request that broke, which does not wait for room."""
        workers = self.lookup.loads(request)
        # A prompt that is computed for its items alone has nothing to hand over.
        alone = request.stage is not None and request.stage.is_replay
        return plan(workers, "never" if alone else self.config.disagg, request.broken, prompt_load(request))

    def room_for(self, request: Request) -> Route | None:
        """Return a route that has room now for a queued request's first attempt, or None.

        A run begins with a free seat in every stage. Otherwise a stage could wait in its worker for one that another
        run holds, which itself waits for the items of a stage that waits for the first run.
        """
        run = None if request.stage is None else request.stage.run
        if run is None:
            loads, tokens = self.lookup.loads(request), prompt_load(request)
            return self.room_among(loads, tokens) or self.room_among(
                self.lookup.loads_for_caller(request, loads), tokens
            )
        seated = all(
            self.room_among(self.registry.of(group).reachable_loads, 0, spare=0) is not None for group in run.groups
        )
        return self.room_among(self.lookup.loads(request), prompt_load(request), spare=0) if seated else None

    def room_among(self, workers: Sequence[WorkerLoad], tokens: int, spare: int = SPARE_SEATS) -> Route | None:
        return next_route(workers, self.config.disagg, tokens, spare)

    def enlist(self, request: Request) -> None:
        """Begin a request that waits in no queue: at once, or when there is a worker."""
        request.stranded_at = self.clock()
        self.stranded[request.id] = request
        self.due.append(request)
        self.place_due()

    def launch(self, request: Request) -> None:
        """Send the attempt that has begun to its workers, after the cancels that they have yet to get (C15)."""
        self.flush()
        self.metrics.add_dispatch(request)
        if request.journal is not None:
            # No two attempts of a request have one number, whoever makes them.
            request.journal.note()
        self.seat(request, 1)
        secret = None if self.config.keys is None else secrets.token_hex(SECRET_BYTES)
        deadline = self.time_left(request, self.clock())
        for message in self.messages(request, secret, deadline):
            if not self.send(message):
                self.registry.unreachable(message.receiver)
                self.retry(request, "a worker cannot be reached", UNREACHABLE)
                return
        request.stranded_at = None
        if request.stage is not None:
            self.launched(request)

    def messages(
        self, request: Request, secret: str | None, deadline: float | None
    ) -> "Sequence[Submit | Embed | NodeTask]":
        """Return the messages that start the attempt, one for each worker."""
        if request.stage is not None:
            return stage_messages(request, request.stage, self.incarnation, secret, deadline)
        if request.embedding is not None:
            return [embed_message(request, request.embedding, self.incarnation, deadline)]
        return request.submits(self.incarnation, secret, deadline)

    def retry(self, request: Request, reason: str, cause: str) -> None:
        """Retry a request whose attempt broke. Its other workers are cancelled first, so that their blocks are free for
        the next attempt. An attempt counts as a fault unless a draining worker moved it or it reached no worker: a
        request may wait for a dead worker's successor."""
        LOG.info("attempt %d broke: %s", request.attempt + 1, reason, extra=about(request))
        self.withdraw(request)
        request.recorder.broke(self.clock(), reason)
        request.broke(self.clock(), excused=cause in EXCUSED)
        if request.trial and request.stage is None:
            self.give_up(request, reason)
            return
        if request.faults >= self.config.max_attempts:
            self.give_up(request, f"{reason}: attempt {request.faults} of {self.config.max_attempts}, try again")
            return
        self.metrics.failovers.labels(cause).inc()
        self.stranded[request.id] = request
        self.due.append(request)
        self.place_due()

    def resume(self) -> None:
        """Try to place the stranded requests again, after a change of the workers: one may be available, or none may
        ever be."""
        self.due.extend(self.stranded.values())
        self.place_due()

    def place_due(self) -> None:
        """Place the due requests in FIFO order. A nested call leaves its requests to the outer one."""
        if self.placing:
            return
        self.placing = True
        try:
            while self.due:
                self.place(self.due.popleft())
        finally:
            self.placing = False
            self.due.clear()

    def place(self, request: Request) -> None:
        """Begin the request's next attempt if there is a worker; end the request if there will be none. Does nothing if
        it is no longer stranded: it may have become due more than once."""
        if self.stranded.get(request.id) is not request:
            return
        route = self.route(request)
        if route is not None:
            del self.stranded[request.id]
            request.begin(route, self.clock())
            self.launch(request)
        elif self.registry.of(request.group).is_given_up:
            self.give_up(request, "its worker is gone, and none will come back: see the launcher's log")

    def withdraw(self, request: Request) -> None:
        """Cancel the request at its workers, and take it off their loads."""
        self.stranded.pop(request.id, None)
        self.suspended.pop(request.id, None)
        self.seat(request, -1)
        for message in request.cancels(self.incarnation):
            self.cancels.post(message.receiver, message)

    def suspend(self, request: Request, reason: str) -> None:
        """End the attempt of a request, which has no other one before `go_on`. That is no fault."""
        LOG.info("attempt %d is suspended: %s", request.attempt + 1, reason, extra=about(request))
        self.withdraw(request)
        request.recorder.broke(self.clock(), reason)
        request.broke(self.clock(), excused=True)
        request.stranded_at = None
        self.suspended[request.id] = request

    def go_on(self, request: Request) -> None:
        """Begin the next attempt of a suspended request, from the last token that it has."""
        del self.suspended[request.id]
        self.enlist(request)

    def flush(self) -> None:
        """Send the cancels that could not be sent yet. A worker that takes none for PATIENCE is gone, or ends the work
        by its own deadline."""
        for worker, unsent in self.cancels.flush(self.clock()).items():
            LOG.warning("%d cancels did not reach the worker %s: it took no message", len(unsent), worker)

    def seat(self, request: Request, change: int) -> None:
        """Add the request to (1) or remove it from (-1) the load of each of its workers, and its prompt to or from that
        of the worker that computes it. A worker that registered anew meanwhile knows nothing of it."""
        if change > 0:
            known = (self.registry.workers.get(incarnation) for incarnation in request.phases)
            request.workers = tuple(worker for worker in known if worker is not None)
        for worker in request.workers:
            worker.in_flight += change
        self.seat_choices(request, request.params.n - len(request.reasons) if change > 0 else 0)
        if change > 0:
            self.seat_prompt(request)
        else:
            self.prompt_done(request)
            for incarnation in request.phases:
                if request.phases[incarnation] != PREFILL:
                    self.recent_work.add(incarnation, sum(len(answer.ids) for answer in request.answers), self.clock())
            request.workers = ()

    def seat_choices(self, request: Request, choices: int) -> None:
        """Count so many of its choices at its workers: those that have not ended."""
        for worker in request.workers if choices != request.seated else ():
            worker.seat(request.share, choices - request.seated)
        request.seated = choices

    def choices_ended(self, request: Request) -> None:
        """Take the choices that have ended off its workers' loads: their seats are free."""
        if request.seated:
            self.seat_choices(request, request.params.n - len(request.reasons))

    def seat_prompt(self, request: Request) -> None:
        """Add the part of the prompt that was not found in its worker's cache to the worker's load."""
        request.prompt_worker = next(name for name, phase in request.phases.items() if phase != DECODE)
        found = 0 if request.route is None else request.route.prompt_worker.found
        load = prompt_load(request)
        self.set_uncomputed(request, max(0, load - found))
        self.recent_work.add(request.prompt_worker, request.uncomputed, self.clock())
        if load and not request.trial:
            self.metrics.routing.add(load, found)

    def prompt_done(self, request: Request) -> None:
        """Take the prompt off its worker's load: it is computed, or no longer wanted."""
        self.advance_prompt(request, len(request.prompt))
        request.prompt_worker = None

    def advance_prompt(self, request: Request, computed: int) -> int:
        """Record that so many tokens of the prompt are computed; return how many of them are new."""
        if request.prompt_worker is None:
            return 0
        new = max(0, request.uncomputed - max(0, len(request.prompt) - computed))
        self.set_uncomputed(request, request.uncomputed - new)
        return new

    def set_uncomputed(self, request: Request, tokens: int) -> None:
        """Note how many tokens of its prompt are to be computed by its worker."""
        before, request.uncomputed = request.uncomputed, tokens
        for worker in request.workers:
            if worker.hello.sender == request.prompt_worker:
                worker.owe(request.share, tokens - before, (tokens > 0) - (before > 0))

    def time_left(self, request: Request, now: float) -> float | None:
        """Return the seconds within which the first token is of use. None if it has arrived, for a self-test, and for a
        stage that waits for others."""
        if request.begun or request.trial or is_joined(request):
            return None
        return max(0.0, request.waits_since + self.config.first_byte_timeout - now)

    def overdue(self, request: Request, now: float) -> str | None:
        """Return a description of the deadline that the request has missed, or None (C14). Progress of a prompt's
        computation restarts the wait, but `prefill_timeout` limits the computation as a whole. Progress of any stage of
        a run restarts the wait of the others."""
        if request.id in self.suspended:
            return None
        if request.stranded_at is not None:
            limit = self.config.failover_timeout
            waited = now - request.stranded_at
            return f"no worker came back within {limit:g} s" if waited > limit else None
        run = None if request.stage is None else request.stage.run
        waited = now - (request.waits_since if run is None else run.waits_since)
        limit = self.config.prefill_timeout
        if not request.begun and not is_joined(request) and request.phases and now - request.sent > limit:
            return f"the prompt was not computed within {limit:g} s"
        config = self.config
        wanted, limit = ("next", config.stream_idle_timeout) if request.begun else ("first", config.first_byte_timeout)
        what = f"{wanted} {made_by(request)}" if request.embedding is None else "embedding"
        return f"the {what} did not come within {limit:g} s" if waited > limit else None


def prompt_load(request: Request) -> int:
    """Return the prompt tokens that keep a worker busy: none where the stage before sets the pace, or their KV comes
    from elsewhere."""
    return 0 if is_joined(request) or claims(request) else len(request.prompt)


def made_by(request: Request) -> str:
    """Return the word for a piece of the answer."""
    kind = "token" if makes_tokens(request) else "output"
    return kind if request.stage is None else f"{kind} of {request.stage.node.name}"


def ignored(request: Request) -> None:
    """Do nothing: there are no stages."""
