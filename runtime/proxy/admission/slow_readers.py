# SPDX-License-Identifier: Apache-2.0
"""Seats of requests whose readers take nothing, for others that wait (docs/decisions/069)."""

from collections.abc import Callable, Mapping

from pontil.runtime.accounting.counts import PREFILL
from pontil.runtime.proxy.admission.control import ModelAdmissions
from pontil.runtime.proxy.dispatch.dispatcher import Dispatcher
from pontil.runtime.proxy.requests.request import Request

# A reader that has taken nothing for so long, with so many tokens behind what its connection's buffer holds, is slow.
UNTAKEN_SECONDS = 3.0
UNTAKEN_TOKENS = 32
# Attempts of one request that end so: each has its prompt, and what was said, computed again.
MOST_SUSPENSIONS = 16


class SlowReaders:
    """Suspends requests whose readers take nothing while others wait for a seat, and goes on with each once its reader
    takes something. Call `tick` a few times a second."""

    def __init__(
        self,
        requests: Mapping[str, Request],
        dispatcher: Dispatcher,
        admissions: ModelAdmissions,
        clock: Callable[[], float],
    ) -> None:
        self.requests, self.dispatcher, self.admissions, self.clock = requests, dispatcher, admissions, clock
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
