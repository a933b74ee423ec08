# SPDX-License-Identifier: Apache-2.0
"""Reports to the proxies of where the time of attempts went."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from pontil.runtime.timeline.work_times import WorkTimes, between
from pontil.runtime.wire.messages import AttemptTimes
from pontil.runtime.worker.links.proxy_link import ProxyLink

# Reports that wait for a proxy that takes no message now; of more the oldest are lost.
MOST_WAITING = 256


@dataclass(frozen=True, slots=True)
class WaitingReport:
    """A report about an attempt that arrived here at `arrived`."""

    arrived: float
    message: AttemptTimes


class TimesReporter:
    """The reports of one worker, each sent at once if its proxy takes it. None holds up a token: one that a socket does
    not take waits here, and not among the messages that have to arrive. `link_of` returns the link to a proxy."""

    def __init__(self, link_of: Callable[[str], ProxyLink | None]) -> None:
        self.link_of = link_of
        self.waiting: deque[WaitingReport] = deque(maxlen=MOST_WAITING)

    def ended(self, proxy: str, request_id: str, attempt: int, arrived: float, times: WorkTimes) -> None:
        """Tell a proxy of an attempt that has ended here, unless it is gone or takes no reports."""
        link = self.link_of(proxy)
        if link is None or link.proxy != proxy or not link.takes_times:
            return
        empty = AttemptTimes(link.hello.sender, proxy, request_id, attempt, time.monotonic() - arrived)
        self.waiting.append(WaitingReport(arrived, report(empty, arrived, times)))
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as it is taken: a proxy that takes nothing now holds up no other. What a proxy that
        is gone was to get is dropped."""
        full: set[str] = set()
        for _ in range(len(self.waiting)):
            one = self.waiting.popleft()
            if one.message.receiver in full or not self.is_done(one):
                full.add(one.message.receiver)
                self.waiting.append(one)

    def is_done(self, one: WaitingReport) -> bool:
        proxy = one.message.receiver
        link = self.link_of(proxy)
        if link is None or link.proxy != proxy:
            return True
        return link.offer(replace(one.message, age=max(one.message.age, time.monotonic() - one.arrived)))


def report(message: AttemptTimes, arrived: float, times: WorkTimes) -> AttemptTimes:
    """Return the message with these times, none of them outside of its age."""
    age = message.age

    def since(at: float | None) -> float | None:
        return None if at is None else between(at - arrived, age)

    computed, verified = since(times.computed), since(times.verified)
    handoff = [] if computed is None or verified is None else [computed, max(computed, verified)]
    return replace(
        message,
        scheduled=since(times.scheduled),
        chunks=times.chunks.since(arrived, age),
        pulls=times.pulls.since(arrived, age),
        handoff=handoff,
        preempted=[between(at - arrived, age) for at in times.preempted],
        first_token=since(times.first),
        last_token=since(times.last),
    )
