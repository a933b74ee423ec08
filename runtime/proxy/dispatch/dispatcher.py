# SPDX-License-Identifier: Apache-2.0
"""Dispatch of requests to workers, and retries when an attempt breaks. Attempts begin only here (C15)."""

import logging
import secrets
from collections import deque
from collections.abc import Callable, Collection, Sequence
from math import exp

from pontil.runtime.accounting.counts import DECODE, PREFILL
from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.proxy.balance.fleet_load import AskedWork
from pontil.runtime.proxy.balance.forecast import forecast_of
from pontil.runtime.proxy.dispatch.lease_waits import LeaseWaits
from pontil.runtime.proxy.dispatch.prefix_lookup import PrefixLookup
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.metrics.all_series import MOVED, UNREACHABLE, Metrics
from pontil.runtime.proxy.requests.log_fields import about
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.routing.policy import SPARE_SEATS, Disagg, Route, WorkerLoad, next_route, plan, seating
from pontil.runtime.wire.links.outbox import Outbox
from pontil.runtime.wire.messages import Message

# Time constant in seconds: a few turns of a conversation.
MEMORY_SECONDS = 300.0
# Seconds of one step of decay, in which a sum loses less than a thousandth: each step looks at all workers.
STEP = 0.25


class RecentWork:
    """Exponentially decaying sums, in the `recent` of each worker of a registry."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.at: float | None = None

    def add(self, incarnation: str, tokens: int, now: float) -> None:
        """Add tokens that a worker has to compute, or has made."""
        if self.at is None:
            self.at = now
        elif now - self.at >= STEP:
            decay = exp((self.at - now) / MEMORY_SECONDS)
            self.at = now
            for worker in self.registry.workers.values():
                worker.recent *= decay
        if incarnation in self.registry.workers:
            self.registry.workers[incarnation].recent += tokens


LOG = logging.getLogger("pontil.proxy")
# Length of a transfer's secret.
SECRET_BYTES = 32
# The causes for which an attempt does not count as a fault.
EXCUSED = (MOVED, UNREACHABLE)


class Dispatcher:
    """The sender of requests to workers. `stranded` requests, which no worker serves, wait until one registers, and
    `suspended` ones until their readers take something.

    `give_up` is called with a request that gets no other attempt, and the reason. `send` returns whether a message was
    sent.
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
        self.waits = LeaseWaits(config, self.lookup, clock)
        self.recent_work, self.asked = RecentWork(registry), AskedWork()
        self.forecast = forecast_of(config.profile)
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

    def route(self, request: Request) -> Route | None:
        """Return the route for the next attempt of a request that broke, which does not wait for room."""
        workers, broken = self.lookup.loads(request), request.attempts.broken
        own = [] if broken else meant_for(request, workers)
        return plan(own or workers, self.disagg(request), broken, request.work.load(request))

    def room_for(self, request: Request, may_claim: bool = True) -> Route | None:
        """Return a route that has room now for a queued request's first attempt, or None. Seats of callers that hold
        more than their part are room for one that `may_claim` them.

        A run begins with a free seat in every stage. Otherwise a stage could wait in its worker for one that another
        run holds, which itself waits for the items of a stage that waits for the first run.
        """
        tokens, joint, disagg = request.work.load(request), request.work.joint, self.disagg(request)
        loads, spare = self.lookup.loads(request), SPARE_SEATS if joint is None else 0
        groups = [self.registry.of(group).reachable_loads for group in joint or ()]
        if not all(next_route(group, self.config.disagg, 0, spare=0) is not None for group in groups):
            return None
        meant_workers = meant_for(request, loads)
        route = next_route(meant_workers, disagg, tokens, spare=spare) if meant_workers else None
        route = route or leased_route(self.lookup.holders(request), loads, disagg, tokens, spare)
        route = route or next_route(loads, disagg, tokens, spare=spare)
        if route is not None or joint is not None:
            return route
        return next_route(self.lookup.loads_for_caller(request, loads, may_claim), disagg, tokens)

    def goes_by_loads(self, request: Request) -> bool:
        """Return whether the loads of workers, with what they have cached, alone tell if there is room for a request:
        nothing else does for one that is of one stage, and has no adapter and no lease."""
        work = request.work
        return not request.ticket.adapter_digest and work.alone is None and work.joint is None

    def idle_room_for(self, request: Request) -> Route | None:
        """Return the worker with the most idle seats for a request that gives way, or None; one that holds its prompt
        by a lease goes before all. It does all of it: what is computed for another worker could not do so."""
        workers = self.lookup.workers(request)
        seats = seating([worker.load for worker in workers], "never" if request.work.alone else self.config.disagg)
        holders = self.lookup.holders(request)
        ids = {load.incarnation for load in seats}.union(holders)
        idle = [worker for worker in workers if worker.hello.sender in ids and worker.idle_seats > 0]
        if not idle:
            return None
        return Route.alone(max(idle, key=lambda worker: (worker.hello.sender in holders, worker.idle_seats)).load)

    def disagg(self, request: Request) -> Disagg:
        if request.share.gives_way:
            return "never"
        return self.config.disagg if request.work.alone is None else "never"

    def enlist(self, request: Request) -> None:
        """Begin a request that waits in no queue: at once, or when there is a worker."""
        request.attempts.stranded_at = self.clock()
        self.stranded[request.id] = request
        self.due.append(request)
        self.place_due()

    def launch(self, request: Request) -> None:
        """Send the attempt that has begun to its workers, after the cancels that they have yet to get (C15)."""
        self.flush()
        self.metrics.add_dispatch(request)
        if self.forecast is not None:
            self.forecast.expect(request)
        if request.journal is not None:
            # No two attempts of a request have one number, whoever makes them.
            request.journal.note()
        self.seat(request)
        secret = None if self.config.keys is None else secrets.token_hex(SECRET_BYTES)
        deadline = self.time_left(request, self.clock())
        for message in request.work.messages(request, self.incarnation, secret, deadline):
            if not self.send(message):
                self.registry.unreachable(message.receiver)
                self.retry(request, "a worker cannot be reached", UNREACHABLE)
                return
        request.attempts.stranded_at = None
        request.work.launched(request)

    def retry(self, request: Request, reason: str, cause: str) -> None:
        """Retry a request whose attempt broke. Its other workers are cancelled first, so that their blocks are free for
        the next attempt. An attempt counts as a fault unless a draining worker moved it or it reached no worker: a
        request may wait for a dead worker's successor."""
        LOG.info("attempt %d broke: %s", request.attempts.number + 1, reason, extra=about(request))
        self.withdraw(request)
        request.recorder.broke(self.clock(), reason)
        request.broke(self.clock(), excused=cause in EXCUSED)
        if not request.unended or request.trial and request.work.joint is None:
            self.give_up(request, reason)
            return
        if request.attempts.faults >= self.config.max_attempts:
            self.give_up(
                request, f"{reason}: attempt {request.attempts.faults} of {self.config.max_attempts}, try again"
            )
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
        it waits for a lease, or is no longer stranded: it may have become due more than once."""
        if self.stranded.get(request.id) is not request:
            return
        route, group = self.route(request), self.registry.of(request.work.group)
        if route is not None and self.waits.awaits_lease(request):
            return
        if route is not None:
            del self.stranded[request.id]
            request.begin(route, self.clock())
            self.launch(request)
        elif group.is_given_up:
            self.give_up(request, "its worker is gone, and none will come back: see the launcher's log")
        elif group.is_over(request.release):
            self.give_up(request, "the workers of the release that began this answer have left: try again")

    def withdraw(self, request: Request) -> None:
        """Cancel the request at its workers, and take it off their loads."""
        self.stranded.pop(request.id, None)
        self.suspended.pop(request.id, None)
        self.unseat(request)
        for message in request.cancels(self.incarnation):
            self.cancels.post(message.receiver, message)

    def suspend(self, request: Request, reason: str) -> None:
        """End the attempt of a request, which has no other one before `go_on`. That is no fault."""
        LOG.info("attempt %d is suspended: %s", request.attempts.number + 1, reason, extra=about(request))
        self.withdraw(request)
        request.recorder.broke(self.clock(), reason)
        request.broke(self.clock(), excused=True)
        request.attempts.stranded_at = None
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

    def seat(self, request: Request) -> None:
        """Add the request to the load of each worker of its attempt, and the part of its prompt that was not found in
        its worker's cache to that of the worker that computes it."""
        load, attempts = request.load, request.attempts
        workers = (self.registry.workers.get(incarnation) for incarnation in attempts.phases)
        load.take([worker for worker in workers if worker is not None])
        load.seat(request.share, len(request.unended))
        prompt_worker = next(name for name, phase in attempts.phases.items() if phase != DECODE)
        cached_tokens = 0 if attempts.route is None else attempts.route.prefill.found
        tokens = request.work.load(request)
        load.owe(request.share, prompt_worker, max(0, tokens - cached_tokens))
        now = self.clock()
        self.recent_work.add(prompt_worker, load.uncomputed, now)
        if tokens and not request.trial:
            self.metrics.routing.add(tokens, cached_tokens)
            if request.work.group is None and not request.share.gives_way:
                self.asked.add(now, tokens, load.uncomputed, len(request.unended), request.params.max_tokens)

    def unseat(self, request: Request) -> None:
        """Take the request off its workers' loads. A worker that registered anew meanwhile knows nothing of it."""
        request.load.let_go(request.share)
        for incarnation, phase in request.attempts.phases.items():
            if phase != PREFILL:
                self.recent_work.add(incarnation, sum(len(answer.ids) for answer in request.answers), self.clock())

    def time_left(self, request: Request, now: float) -> float | None:
        """Return the seconds within which the first token is of use. None if it has arrived, for a self-test, and for a
        stage that waits for others."""
        if request.times.begun or request.trial or request.is_joined or request.share.gives_way:
            return None
        return max(0.0, request.times.waits_since + self.config.first_byte_timeout - now)

    def overdue(self, request: Request, now: float) -> str | None:
        """Return a description of the deadline that the request has missed, or None (C14). Progress of a prompt's
        computation restarts the wait, but `prefill_timeout` limits the computation as a whole. Progress of any stage of
        a run restarts the wait of the others."""
        if request.id in self.suspended:
            return None
        if request.share.gives_way and request.attempts.stranded_at is None:
            # It waits for others for as long as they want.
            return None
        config, attempts, has_begun = self.config, request.attempts, request.times.begun
        if attempts.stranded_at is not None:
            limit = config.failover_timeout
            wait_seconds = now - attempts.stranded_at
            return f"no worker came back within {limit:g} s" if wait_seconds > limit else None
        wait_seconds = now - request.work.waits_since(request)
        limit = config.prefill_timeout
        is_computing = not has_begun or request.load.prompt_worker is not None
        if is_computing and not request.is_joined and attempts.phases and now - attempts.sent > limit:
            return f"the prompt was not computed within {limit:g} s"
        limit = config.stream_idle_timeout if has_begun else config.first_byte_timeout
        event = request.work.awaited(has_begun)
        return f"the {event} did not come within {limit:g} s" if wait_seconds > limit else None


def leased_route(
    holders: Collection[str], loads: Sequence[WorkerLoad], disagg: Disagg, tokens: int, spare: int = SPARE_SEATS
) -> Route | None:
    """Return a route by which a worker that holds the prompt by a lease computes the rest of it, if there is room: it
    was paid for. Where one does all of it that is the holder, of whatever role."""
    if not holders:
        return None
    is_apart = disagg != "never"
    workers = [load for load in loads if load.incarnation in holders or is_apart and load.role == "decode"]
    route = next_route(workers, disagg, tokens, spare=spare)
    return route if route is not None and route.prefill.incarnation in holders else None


def meant_for(request: Request, workers: Sequence[WorkerLoad]) -> tuple[WorkerLoad, ...]:
    """Return the workers of the roles that do this request best alone; none where it needs no such."""
    roles, suits = request.work.alone or (), request.work.suits
    return tuple(worker for worker in workers if worker.role in roles and suits(worker.incarnation))
