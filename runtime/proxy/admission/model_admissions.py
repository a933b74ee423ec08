# SPDX-License-Identifier: Apache-2.0
"""Admission by group of workers: requests for one model, or for one stage of it, wait in a queue of their own, and
never for another group's workers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.errors import TooManyRequests, Unavailable
from pontil.runtime.proxy.admission.control import AdmissionControl
from pontil.runtime.proxy.admission.rate_limits import RateLimits
from pontil.runtime.proxy.admission.request_queue import RequestQueue
from pontil.runtime.proxy.dispatch.dispatcher import Dispatcher
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.metrics.all_series import KEY_LIMIT, Metrics
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.proxy.siblings.usage_table import UsageTable


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
        return self.of(request).queue

    def check_limits(self, ticket: Ticket, requests: int = 1) -> None:
        """Check that a key allows so many requests now, before its grammars, texts and recordings are worked on.
        Their tokens are checked at their admission. Raises TooManyRequests or RequestError."""
        if ticket.continues:
            return
        with self.counting_refusals(requests):
            self.limits.check(ticket, requests, 0, self.clock(), states=False)

    def admit_replay(self, ticket: Ticket) -> None:
        """Count a request for the rest of a stream. Raises TooManyRequests."""
        with self.counting_refusals(1):
            self.limits.enter_replay(ticket, self.clock())

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
            admission.queue.pass_time(now)

    def hopeless(self) -> list[tuple[Request, Unavailable]]:
        """Return the queued requests that cannot be served in time, each with its error."""
        return [found for admission in self.by_group.values() for found in admission.hopeless()]
