# SPDX-License-Identifier: Apache-2.0
"""The timelines of a proxy's requests: of all that are open, and of the last ones that ended."""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import nlargest
from itertools import chain
from typing import Any

from pontil.runtime.threads import ThreadFailures
from pontil.runtime.timeline.recorder import RequestRecorder
from pontil.runtime.timeline.timeline import Timeline, TimelineRow
from pontil.runtime.wire.messages import AttemptTimes

LOG = logging.getLogger("pontil.requests")


def log_slow(timeline: Timeline) -> None:
    row = timeline.row
    trace = {} if row.trace_id is None else {"trace_id": row.trace_id}
    LOG.warning("%s", slow_line(timeline), extra={"request": row.id} | trace)


def slow_line(timeline: Timeline) -> str:
    """Return one line about a slow request, with the part that took most of its time."""
    row, largest, first = timeline.row, timeline.largest, timeline.row.first_token_seconds
    return (
        f"slow request {row.id} key={row.caller} state={row.state} total={row.seconds:.3f} "
        f"first_token={'-' if first is None else f'{first:.3f}'} "
        f"largest={'-' if largest is None else f'{largest.name} {largest.seconds:.3f} s'} "
        f"workers={','.join(row.workers) or '-'} attempts={row.attempts} "
        f"prompt={row.prompt_tokens} cached={row.cached_tokens} completion={row.completion_tokens}"
    )


# The most requests that ended whose timelines are kept, and the bytes that these may take, about.
MOST_ENDED, MOST_BYTES = 512, 16 << 20
# The most requests that are listed.
MOST_LISTED = 200
# Seconds after a request's end for the reports of its workers.
GRACE = 1.0
# Timelines that are told in one turn of the event loop, and the most that wait to be told.
PORTION, MOST_UNTOLD = 32, 4096
LONGEST_ID = 512
MOST_UNKEPT = 4096

Listener = Callable[[Timeline], None]


@dataclass(frozen=True, slots=True)
class TimelineListener:
    """A function that is called with the timeline of each request that took so many `seconds`, once it is complete."""

    tell: Listener
    seconds: float = 0.0


class Timelines:
    """The recorders of requests by id, in the order in which they were admitted and ended.

    The memory of those that ended is bounded by their number and by their size; the oldest are forgotten first. Of one
    request the parts are bounded too (step_gaps.py, worker_report.py, recorder.py).
    """

    def __init__(
        self,
        clock: Callable[[], float],
        failures: ThreadFailures | None = None,
        most: int = MOST_ENDED,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.clock, self.most, self.most_bytes = clock, most, most_bytes
        self.failures = failures or ThreadFailures()
        self.open: dict[str, RequestRecorder] = {}
        self.ended: dict[str, RequestRecorder] = {}
        self.sizes: dict[str, int] = {}
        # Hidden requests that ended lately, whose workers may still report.
        self.unkept: dict[str, None] = {}
        self.bytes = 0
        self.listeners: list[TimelineListener] = []
        self.untold: deque[RequestRecorder] = deque()

    def on_complete(self, tell: Listener, seconds: float = 0.0) -> None:
        """Call `tell` in the event loop once with the timeline of every request that took at least so many seconds:
        GRACE after its end, so that its workers' reports are here. It must not take long. Hidden requests are left
        out."""
        self.listeners.append(TimelineListener(tell, seconds))

    def admit(self, request_id: str, recorder: RequestRecorder) -> None:
        self.open[request_id] = recorder

    def end(self, row: TimelineRow, now: float) -> None:
        """Keep the timeline of a request that has ended `now`, among the last ones."""
        recorder = self.open.pop(row.id, None)
        if recorder is None:
            return
        # From now on it holds nothing of the request, whose prompt is freed without the garbage collector.
        recorder.end(row, now)
        if recorder.is_hidden:
            self.unkept[row.id] = None
            if len(self.unkept) > MOST_UNKEPT:
                del self.unkept[next(iter(self.unkept))]
            return
        self.drop(row.id)
        self.ended[row.id] = recorder
        self.weigh(row.id)
        if any(row.seconds >= listener.seconds for listener in self.listeners):
            self.untold.append(recorder)
            if len(self.untold) > MOST_UNTOLD:
                self.tell(self.untold.popleft())

    def weigh(self, request_id: str) -> None:
        """Note the size of a request that ended, and forget the oldest ones where all are too large."""
        size = self.ended[request_id].size
        self.bytes += size - self.sizes.get(request_id, 0)
        self.sizes[request_id] = size
        while len(self.ended) > self.most or (self.bytes > self.most_bytes and len(self.ended) > 1):
            self.drop(next(iter(self.ended)))

    def drop(self, request_id: str) -> None:
        if self.ended.pop(request_id, None) is not None:
            self.bytes -= self.sizes.pop(request_id)

    def take(self, message: AttemptTimes) -> bool:
        """Take a worker's report; return whether it is one that was to come. Raises MalformedFrame."""
        if message.request_id in self.unkept:
            return True
        recorder = self.find(message.request_id)
        if recorder is None or not recorder.take(message, self.clock()):
            return False
        if message.request_id in self.ended:
            self.weigh(message.request_id)
        return True

    def find(self, request_id: str) -> RequestRecorder | None:
        return self.open.get(request_id) or self.ended.get(request_id)

    def named(self, name: str) -> list[RequestRecorder]:
        """Return the request of this id, or those of the HTTP request of this id, in the order of their beginning."""
        if not 0 < len(name) <= LONGEST_ID:
            return []
        if (recorder := self.find(name)) is not None:
            return [recorder]
        all_recorders = chain(self.ended.items(), self.open.items())
        matches = [match for key, match in all_recorders if key.rpartition("-")[0] == name and not match.is_hidden]
        return sorted(matches, key=lambda match: match.since)

    def shown(self, name: str) -> dict[str, Any] | None:
        """Return the JSON of a request, or of the requests of an HTTP request; None if none is known."""
        now = self.clock()
        timelines = [recorder.timeline(now).to_json() for recorder in self.named(name)]
        if len(timelines) > 1:
            return {"requests": timelines}
        return timelines[0] if timelines else None

    def rows(self, most: int = MOST_LISTED) -> list[TimelineRow]:
        """Return the lines of requests, the latest first: the open ones, and those that ended."""
        now, all_recorders = self.clock(), chain(self.ended.values(), self.open.values())
        visible_recorders = [recorder for recorder in all_recorders if not recorder.is_hidden]
        return [
            recorder.line(now) for recorder in nlargest(most, visible_recorders, key=lambda recorder: recorder.since)
        ]

    def tick(self) -> None:
        """Tell listeners of requests that are complete."""
        now, portion = self.clock(), max(PORTION, len(self.untold) // 4)
        while self.untold and portion:
            oldest = self.untold[0]
            if oldest.ended is not None and now < oldest.ended + GRACE:
                return
            self.tell(self.untold.popleft())
            portion -= 1

    def tell_rest(self) -> None:
        """Tell listeners of all requests that have ended, with what is known of them."""
        while self.untold:
            self.tell(self.untold.popleft())

    def tell(self, recorder: RequestRecorder) -> None:
        """Tell listeners of a request. A fault in its timeline reaches neither the caller nor other requests."""
        self.failures.contain("timelines", self.tell_all, recorder)

    def tell_all(self, recorder: RequestRecorder) -> None:
        timeline = recorder.timeline(self.clock())
        for listener in self.listeners:
            if timeline.row.seconds >= listener.seconds:
                self.failures.contain("timelines", listener.tell, timeline)
