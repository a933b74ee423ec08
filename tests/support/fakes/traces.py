# SPDX-License-Identifier: Apache-2.0
"""Traces of requests as the proxy makes them, without a proxy."""

from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.timeline.received import ReceivedRequest
from pontil.runtime.timeline.timeline import Gaps, TimeEvent, Timeline, TimelineRow, TimeSpan
from pontil.runtime.tracing.tracer import ServedTrace, Tracer

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
RECEIVED_AT = 1_000_000.25
SPANS = (
    TimeSpan("receive", "proxy", 0.0, 0.01),
    TimeSpan("queue", "proxy", 0.02, 0.05, 0),
    TimeSpan("attempt", "proxy", 0.05, 0.4, 0),
    TimeSpan("queue", "prefill:0", 0.06, 0.07, 0),
    TimeSpan("compute", "prefill:0", 0.07, 0.2, 0, tokens=5),
    TimeSpan("queue", "decode:0", 0.06, 0.2, 0),
    TimeSpan("pull", "decode:0", 0.1, 0.2, 0, bytes=4096, blocks=1),
    TimeSpan("attempt", "proxy", 0.5, 1.0, 1),
    TimeSpan("compute", "mixed:0", 0.5, 0.6, 1, tokens=7),
    TimeSpan("decode", "mixed:0", 0.6, None, 1),
)
EVENTS = (
    TimeEvent("first_token", "proxy", 0.3),
    TimeEvent("failover", "proxy", 0.4, 0, "decode:0 died while it served this request"),
    TimeEvent("preempted", "mixed:0", 0.7, 1),
)


def timeline(request_id: str = "r-1", state: str = "complete", finish: str | None = "stop") -> Timeline:
    row = TimelineRow(
        request_id, RECEIVED_AT, "tiny", "/v1/completions", "-", state, finish, 5, 2, 7, 2, 0.3, 1.0, ("mixed:0",)
    )
    return Timeline(row, SPANS, EVENTS, Gaps(0.0), None)


def complete(
    tracer: Tracer, request_id: str = "r-1", parents: tuple[str, ...] = (), states: tuple[str, ...] = (),
    status: int = 200, done: Timeline | None = None,
) -> ServedTrace:  # fmt: skip
    """Serve one request by this tracer, to its end."""
    received = ReceivedRequest("/v1/completions", tracer.clock)
    received.since_epoch = RECEIVED_AT
    received.at -= 1.25
    trace = tracer.begin(received, "r", "POST", parents, states)
    tracer.join(request_id, SamplingParams(7, 1, temperature=0.5), received)
    tracer.responded(trace, status)
    tracer.handled(trace)
    tracer.take(done or timeline(request_id))
    return trace
