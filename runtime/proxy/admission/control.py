# SPDX-License-Identifier: Apache-2.0
"""Admission of requests, and their dispatch to workers, by group of workers: requests for one model, or for one stage
of it, wait in a queue of their own, and never for another group's workers."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.errors import PontilError, RequestError, TooManyRequests, Unavailable
from pontil.runtime.foundation.fair_share import EVERYBODY, FairShare
from pontil.runtime.proxy.admission.fair_queue import FairQueue
from pontil.runtime.proxy.admission.rate_limits import RateLimits
from pontil.runtime.proxy.admission.request_queue import RequestQueue
from pontil.runtime.proxy.admission.seat_rooms import RoomMemory, SeatRooms, claimable
from pontil.runtime.proxy.dispatch.dispatcher import Dispatcher
from pontil.runtime.proxy.fleet.registry import Registry, WorkerGroup
from pontil.runtime.proxy.metrics.all_series import KEY_LIMIT, OVERLOAD, TOO_LATE, Metrics
from pontil.runtime.proxy.requests.request import Request, Work
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.proxy.routing.policy import Route, WorkerLoad
from pontil.runtime.proxy.siblings.usage_table import UsageTable

# Seconds for which the first request of all stages is passed by others. After that they wait until every stage has a
# seat for it.
PASSED_SECONDS = 1.0
# Requests admitted per seat of the workers' batches: those beyond the seats wait in a queue.
REQUESTS_PER_SEAT = 4


class AdmissionControl:
    """The entry point of requests for one model, whose `workers` they go to; callers have the same `limits` for all
    models: `check`, then `enter` for each; `dispatch` whenever there may be room; `leave` at
    its end. Who gives way waits in the `background`, behind the `queue` in one `order` with it (docs/decisions/116).
    Lines of batches count against no limit of anybody's (docs/decisions/106)."""

    def __init__(
        self,
        config: ProxyConfig,
        workers: WorkerGroup,
        limits: RateLimits,
        dispatcher: Dispatcher,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self.workers, self.limits = workers, limits
        self.dispatcher, self.metrics, self.clock = dispatcher, metrics, clock
        self.fair, deadline = config.fair_by == "key", config.first_byte_timeout
        self.order: FairQueue[Request] = FairQueue(self.fair)
        self.queue = RequestQueue(
            deadline,
            lambda: workers.seats,
            self.order,
            claimable=lambda share: claimable([worker for worker, _ in workers.current.seated], share),
        )
        self.background = RequestQueue(deadline, lambda: workers.seats, self.order, behind=self.queue)
        # Choices in flight, of all callers and of each.
        self.choices = 0
        self.by_caller: Counter[str] = Counter()
        self.dispatching = False
        self.memory = RoomMemory(self.order, dispatcher.lookup)

    def check(self, ticket: Ticket, works: Sequence[Work], workers: Sequence[WorkerLoad]) -> None:
        """Check that these workers can admit all of these. Raise Unavailable, TooManyRequests or RequestError."""
        try:
            self.check_all(ticket, works, workers)
        except (Unavailable, TooManyRequests) as error:
            self.metrics.refused.labels(KEY_LIMIT if isinstance(error, TooManyRequests) else OVERLOAD).inc(len(works))
            raise

    def check_all(self, ticket: Ticket, works: Sequence[Work], workers: Sequence[WorkerLoad]) -> None:
        if not workers:
            raise Unavailable("no worker is ready yet: try again in a moment")
        choices = [work.params.n for work in works]
        check_together(workers, sum(choices))
        check_seats(workers, max(choices))
        if ticket.is_line:
            return
        queue = self.background if ticket.service_class.gives_way else self.queue
        if not queue.is_measured and (not self.fair or self.by_caller[ticket.caller]):
            check_capacity(workers, self.choices, sum(choices))
        requests, tokens = (sum(counts) for counts in zip(*(work.claim for work in works), strict=True))
        if requests:
            self.limits.check(ticket, requests, tokens, self.clock())
        try:
            queue.check(works, ticket, self.share_of(ticket))
        except PontilError:
            self.limits.state(ticket.caller)
            raise

    def enter(self, request: Request) -> None:
        """Queue a request for its first attempt."""
        now = self.clock()
        request.share = self.share_of(request.ticket)
        self.workers.shares.enter(request.release)
        if not request.ticket.is_line:
            self.count(request, 1)
            self.limits.enter(request.ticket.caller, *request.work.claim, now)
        self.queue_of(request).push(request, now)

    def enter_again(self, request: Request) -> None:
        """Count a request that another proxy had admitted. It waits in no queue."""
        request.share = self.share_of(request.ticket)
        self.workers.shares.enter(request.release)
        self.count(request, 1)
        self.limits.enter_again(request.ticket.caller, *request.work.claim, self.clock())

    def count(self, request: Request, change: int) -> None:
        """Add the choices of a request to those in flight (1), or take them off (-1)."""
        self.choices += change * request.params.n
        caller = request.ticket.caller
        self.by_caller[caller] += change * request.params.n
        if not self.by_caller[caller]:
            del self.by_caller[caller]

    def queue_of(self, request: Request) -> RequestQueue:
        return self.background if request.ticket.service_class.gives_way else self.queue

    def share_of(self, ticket: Ticket) -> FairShare:
        gives_way = ticket.service_class.gives_way
        if not self.fair:
            return replace(EVERYBODY, gives_way=gives_way)
        return FairShare.of(ticket.caller, ticket.weight, gives_way)

    def leave(self, request: Request) -> None:
        """Forget a request that has ended, queued or dispatched."""
        self.workers.shares.leave(request.release)
        if not request.ticket.is_line:
            self.count(request, -1)
            self.limits.leave(request.ticket.caller, *request.work.claim)
        self.queue_of(request).drop(request, self.clock())

    def dispatch(self) -> None:
        """Send queued requests to workers, in turn, as far as there is room; park those that wait for a lease. A call
        during another one returns at once: the outer call goes on until there is no room."""
        if self.dispatching:
            return
        self.dispatching = True
        try:
            while placement := self.next_with_room():
                request, route = placement
                if self.dispatcher.waits.awaits_lease(request):
                    self.queue_of(request).park(request, self.clock())
                    continue
                self.queue_of(request).serve(request, self.clock())
                request.begin(route, self.clock())
                self.dispatcher.launch(request)
        finally:
            self.dispatching = False

    def next_with_room(self) -> tuple[Request, Route] | None:
        """Return the next request that has room now, with its route. It may pass those of other callers and releases
        that have none: what they wait for is not what it takes (docs/decisions/068). Who gives way passes nobody else;
        in the part that is its class's it has its turn as one that does not, here and in its worker."""
        if not self.order.entries:
            return None
        state = self.memory.now()
        if self.memory.lasts(state):
            return None
        self.memory.full, stays = None, True
        rooms, now = SeatRooms(self.workers, self.dispatcher.config.disagg), self.clock()
        for request in self.order.heads():
            stays = stays and self.dispatcher.goes_by_loads(request)
            if request.ticket.service_class.gives_way:
                if len(self.queue) and not self.order.is_due(request):
                    continue
                request.share = replace(request.share, gives_way=not len(self.queue))
                if request.share.gives_way and request.work.joint is None:
                    if (route := self.dispatcher.idle_room_for(request)) is not None:
                        return request, route
                    continue
            may_claim = self.order.may_claim(request)
            if not rooms.may_seat(request, may_claim):
                continue
            if (route := self.dispatcher.room_for(request, may_claim)) is not None:
                return request, route
            if request.work.joint is not None and now - request.times.arrived > PASSED_SECONDS:
                break
        self.memory.full = state if stays else None
        return None

    def seconds_for(self, tokens: int, lines: int) -> float | None:
        """Return the estimate of the time in which so many lines, of so many prompt tokens, are begun behind those that
        wait; None while nothing is measured."""
        waiting = self.background
        estimate = waiting.rate.now_wait or waiting.now_wait
        return None if estimate is None else estimate.after(waiting.tokens + tokens, waiting.choices + lines)

    def pass_time(self, now: float) -> None:
        """Advance the clock, and have those wait for room again that wait for no lease any more."""
        for queue in (self.queue, self.background):
            queue.pass_time(now)
            for request in [entry.item for entry in queue.parked.values()]:
                if not self.dispatcher.waits.awaits_lease(request):
                    queue.unpark(request, now)

    def hopeless(self) -> list[tuple[Request, Unavailable]]:
        """Return the queued requests that cannot be served in time, each with its error."""
        if not len(self.order):
            return []
        if self.workers.is_given_up:
            error = Unavailable("no worker is left, and none will come back: see the launcher's log")
            return [(request, error) for request in self.order if not request.ticket.is_line]
        refusals = [*self.queue.hopeless(self.clock()), *self.background.hopeless(self.clock())]
        self.metrics.refused.labels(TOO_LATE).inc(len(refusals))
        return refusals


def most_choices(workers: Sequence[WorkerLoad]) -> int:
    """Return the most choices that are admitted at once."""
    return REQUESTS_PER_SEAT * sum([worker.seats for worker in workers])


def check_together(workers: Sequence[WorkerLoad], wanted: int, param: str = "prompt", named: str = "") -> None:
    """Raise RequestError for a request of several prompts that asks for more choices than are ever admitted at once:
    a retry would not help. The prompts are those of `param`, and are `named` so; absent: by its plural."""
    named = named or f"{param}s"
    if workers and wanted > most_choices(workers):
        says = f"the {named} ask for {wanted} choices together, but {most_choices(workers)} are all that can be taken"
        raise RequestError(f"{says}: send fewer {named} at once, or ask for a smaller n", param=param)


def check_seats(workers: Sequence[WorkerLoad], n: int) -> None:
    """Raise RequestError for more choices than the smallest worker has seats."""
    seats = min([worker.seats for worker in workers], default=n)
    if n > seats:
        raise RequestError(f"n is {n}, but a worker serves at most {seats} choices at once: ask for less", param="n")


def check_capacity(workers: Sequence[WorkerLoad], in_flight: int, wanted: int = 1) -> None:
    """Raise Unavailable if `wanted` more choices than the `in_flight` ones exceed the limit that holds until the
    workers' rates are measured: refused at once rather than queued without bound."""
    limit = most_choices(workers)
    if workers and in_flight + wanted > limit:
        says = f"{in_flight} requests are in flight, which is all that can be taken: try again in a moment"
        raise Unavailable(says, retry_after=1.0)


class ModelAdmissions:
    """The admission of each group: `by_group` has that of the generating model under None, the others by their keys.
    What a caller may use is counted over all of them."""

    def __init__(
        self,
        config: ProxyConfig,
        registry: Registry,
        dispatcher: Dispatcher,
        metrics: Metrics,
        clock: Callable[[], float],
        table: UsageTable | None = None,
    ) -> None:
        limits = self.limits = RateLimits(table=table)
        self.metrics, self.clock = metrics, clock
        self.by_group = {
            key: AdmissionControl(config, group, limits, dispatcher, metrics, clock)
            for key, group in registry.groups.items()
        }

    @property
    def generating(self) -> AdmissionControl:
        return self.by_group[None]

    def of(self, request: Request) -> AdmissionControl:
        return self.by_group[request.work.group]

    def queue_of(self, request: Request) -> RequestQueue:
        return self.of(request).queue_of(request)

    def check_limits(self, ticket: Ticket, requests: int = 1) -> None:
        """Check that a key allows so many requests now, before its grammars, texts and recordings are worked on.
        Their tokens are checked at their admission. Raises TooManyRequests or RequestError."""
        if ticket.continues or ticket.is_line:
            return
        with self.counting_refusals(requests):
            self.limits.check(ticket, requests, 0, self.clock(), states=False)

    def admit_to_rate(self, ticket: Ticket) -> None:
        """Count a request that generates nothing: for the rest of a stream, or for a count whose prompt has media.
        Raises TooManyRequests."""
        with self.counting_refusals(1):
            self.limits.enter_rate(ticket, self.clock())

    @contextmanager
    def counting_refusals(self, requests: int) -> Iterator[None]:
        try:
            yield
        except TooManyRequests:
            self.metrics.refused.labels(KEY_LIMIT).inc(requests)
            raise

    def dispatch(self) -> None:
        """Send queued requests to workers, as far as there is room."""
        for admission in self.by_group.values():
            admission.dispatch()

    def pass_time(self, now: float) -> None:
        self.limits.look_around(now)
        for admission in self.by_group.values():
            admission.pass_time(now)

    def hopeless(self) -> list[tuple[Request, Unavailable]]:
        """Return the queued requests that cannot be served in time, each with its error."""
        return [refusal for admission in self.by_group.values() for refusal in admission.hopeless()]
