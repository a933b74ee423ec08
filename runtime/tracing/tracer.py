# SPDX-License-Identifier: Apache-2.0
"""Traces of HTTP requests: which of them are kept, and when one is complete. Needs no library of OpenTelemetry."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pontil.runtime.foundation.trace_context import TraceContext, new_trace, read_context
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.timeline.received import ReceivedRequest
from pontil.runtime.timeline.timeline import Timeline

# Requests whose timelines are awaited at most.
MOST_AWAITED = 8192


class SpanCounts(Protocol):
    """The counters of spans, which several threads use."""

    def took(self, spans: int) -> None: ...

    def drop(self, spans: int, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request of an HTTP request: where its time went, and what it asked for."""

    timeline: Timeline
    params: SamplingParams


@dataclass(slots=True)
class ServedTrace:
    """The trace of one HTTP request: `context` is its server span, `parent` the client's span if it named one.

    It is complete once its handler has `ended`, in seconds of the proxy's clock, the `status` of its response is known,
    and the timelines of all its requests are here. From then on it `is_over`.
    """

    context: TraceContext
    parent: TraceContext | None
    method: str
    request_id: str
    received: ReceivedRequest
    ended: float | None = None
    status: int | None = None
    awaited: int = 0
    is_over: bool = False
    requests: list[TracedRequest] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return self.ended is not None and self.status is not None and not self.awaited

    @property
    def span_count(self) -> int:
        """Number of its spans, about."""
        return 1 + sum(len(request.timeline.spans) for request in self.requests)


class TraceExport(Protocol):
    """The way of traces to a collector, with a thread of its own between `start` and `close`."""

    def start(self) -> None: ...

    def put(self, trace: ServedTrace) -> None:
        """Take a trace that is complete and sampled, without waiting."""

    def close(self) -> None:
        """Send what can be sent in short time. Called in any thread but its own, once or more."""


class Tracer:
    """The traces of a proxy. All but the export is in the event loop."""

    def __init__(
        self, sample_rate: float, export: TraceExport, clock: Callable[[], float] = lambda: time.monotonic()
    ) -> None:
        self.sample_rate, self.export, self.clock = sample_rate, export, clock
        # By the request's id. A stream that went to another proxy and came back is awaited twice; its timelines come in
        # the order of their ends.
        self.awaited: dict[str, list[tuple[ServedTrace, SamplingParams]]] = {}

    def begin(
        self,
        received_request: ReceivedRequest,
        request_id: str,
        method: str,
        parents: Sequence[str] = (),
        states: Sequence[str] = (),
    ) -> ServedTrace:
        """Begin the trace of an HTTP request, in the client's if its headers name one: then the client decides whether
        it is sampled."""
        parent = read_context(parents, states)
        context = new_trace(self.sample_rate) if parent is None else parent.child()
        trace = received_request.trace = ServedTrace(context, parent, method, request_id, received_request)
        return trace

    def join(
        self, request_id: str, params: SamplingParams, received_request: ReceivedRequest | None
    ) -> TraceContext | None:
        """Await the timeline of a request that an HTTP request has become; return its place in the trace of that, if it
        has one."""
        trace = None if received_request is None else received_request.trace
        if not isinstance(trace, ServedTrace):
            return None
        if trace.context.is_sampled and len(self.awaited) < MOST_AWAITED:
            trace.awaited += 1
            self.awaited.setdefault(request_id, []).append((trace, params))
        return trace.context

    def take(self, timeline: Timeline) -> None:
        """Take the timeline of a request that is complete."""
        waiting = self.awaited.get(timeline.row.id)
        if waiting is None:
            return
        trace, params = waiting.pop(0)
        if not waiting:
            del self.awaited[timeline.row.id]
        trace.requests.append(TracedRequest(timeline, params))
        trace.awaited -= 1
        self.look(trace)

    def responded(self, trace: ServedTrace, status: int) -> None:
        """Note the status of the response, which has begun."""
        trace.status = status
        self.look(trace)

    def handled(self, trace: ServedTrace, status: int | None = None) -> None:
        """Note that the handler has ended, and the status if it is known by now."""
        trace.ended = self.clock()
        trace.status = status if trace.status is None else trace.status
        self.look(trace)

    def look(self, trace: ServedTrace) -> None:
        if trace.is_over or not trace.is_complete:
            return
        trace.is_over = True
        # Timelines of ended requests are kept for long, and lead to their HTTP request.
        trace.received.trace = None
        if trace.context.is_sampled:
            self.export.put(trace)
