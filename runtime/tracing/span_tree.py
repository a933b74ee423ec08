# SPDX-License-Identifier: Apache-2.0
"""A trace as spans of OpenTelemetry: the HTTP request, the parts of its requests, and those that workers reported.

Names of attributes are those of the semantic conventions for HTTP and for generative AI, and vLLM's where these have
none. No span has a text of the request or of the answer.
"""

from collections.abc import Callable, Iterable, Iterator, Set
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from pontil.runtime.foundation.trace_context import TraceContext
from pontil.runtime.timeline.timeline import (
    ATTEMPT,
    CANCELLED,
    COMPUTE,
    FAILED,
    FAILOVER,
    PROXY,
    QUEUE,
    WRITE,
    TimeEvent,
    Timeline,
    TimelineRow,
    TimeSpan,
)
from pontil.runtime.tracing.tracer import ServedTrace

EMBEDDINGS, RERANK = "embeddings", "rerank"
OPERATIONS = (
    ("/v1/chat/completions", "chat"),
    ("/v1/responses", "chat"),
    ("/v1/messages", "chat"),
    ("/v1/completions", "text_completion"),
    ("/generate", "text_completion"),
    ("/v1/embeddings", EMBEDDINGS),
    *((path, RERANK) for path in ("/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score")),
    ("/api/chat", "chat"),
    ("/api/generate", "text_completion"),
    ("/api/embed", EMBEDDINGS),
)
# Statuses from here on are faults of the server.
SERVER_FAULT = 500
# Nanoseconds.
PER_SECOND = 1_000_000_000

Resources = Callable[[str], Resource]


class SpanTree:
    """The spans of one trace. The proxy's are of the process `proxy`, a worker's of its own name: `resources` makes of
    a name what the process is."""

    def __init__(self, trace: ServedTrace, proxy: str, resources: Resources, scope: InstrumentationScope) -> None:
        self.trace, self.proxy, self.resources, self.scope = trace, proxy, resources, scope
        self.state = TraceState.from_header([trace.context.state]) if trace.context.state else None
        self.root = self.place(trace.context, is_remote=False)

    def place(self, context: TraceContext, *, is_remote: bool) -> SpanContext:
        return SpanContext(
            int(context.trace_id, 16), int(context.span_id, 16), is_remote, TraceFlags(context.flags), self.state
        )

    def spans(self) -> Iterator[ReadableSpan]:
        yield self.server_span()
        told_names: set[str] = set()
        for request in self.trace.requests:
            yield from self.parts(request.timeline, told_names)
            told_names |= {span.name for span in request.timeline.spans if is_shared(span)}

    def server_span(self) -> ReadableSpan:
        trace = self.trace
        parent = None if trace.parent is None else self.place(trace.parent, is_remote=True)
        begin = trace.received.since_epoch
        # A reply that is no stream is written after its handler has ended.
        write_ends = (
            span.end or 0.0 for request in trace.requests for span in request.timeline.spans if span.name == WRITE
        )
        took = max([0.0 if trace.ended is None else trace.ended - trace.received.at, *write_ends])
        has_failed = any(request.timeline.row.state == FAILED for request in trace.requests)
        status = trace.status or 0
        attributes = {**http_attributes(trace), **request_attributes(trace)}
        is_fault = status >= SERVER_FAULT or has_failed
        if is_fault:
            attributes["error.type"] = str(status) if status >= SERVER_FAULT else FAILED
        events = [event for request in trace.requests for event in request.timeline.events if event.attempt is None]
        return ReadableSpan(
            f"{trace.method} {trace.received.route}", self.root, parent, self.resources(self.proxy), attributes,
            [made_event(event, begin) for event in events], kind=SpanKind.SERVER, status=made_status(is_fault),
            start_time=nanoseconds(begin), end_time=nanoseconds(begin + took),
            instrumentation_scope=self.scope,
        )  # fmt: skip

    def parts(self, timeline: Timeline, told_names: Set[str]) -> Iterator[ReadableSpan]:
        """Yield a span for each part, but for those of the HTTP request that were told already, by their names; what
        belongs to an attempt is a child of that attempt's span."""
        attempts: dict[int | None, SpanContext] = {}
        new = (span for span in timeline.spans if not (is_shared(span) and span.name in told_names))
        ordered_spans = sorted(new, key=lambda span: span.name != ATTEMPT)
        for span in ordered_spans:
            place = self.place(self.trace.context.child(), is_remote=False)
            is_attempt = span.name == ATTEMPT
            if is_attempt:
                attempts[span.attempt] = place
            # The wait before an attempt has its number, but is no part of it.
            is_within = span.process != PROXY and not is_attempt
            parent = attempts.get(span.attempt, self.root) if is_within else self.root
            events = [event for event in timeline.events if is_attempt and event.attempt == span.attempt is not None]
            yield self.part(span, place, parent, timeline, events)

    def part(
        self, span: TimeSpan, place: SpanContext, parent: SpanContext, timeline: Timeline, events: Iterable[TimeEvent]
    ) -> ReadableSpan:
        base, span_events = timeline.row.received_at, list(events)
        end = timeline.row.seconds if span.end is None else span.end
        return ReadableSpan(
            span.name,
            place,
            parent,
            self.resources(self.proxy if span.process == PROXY else span.process),
            part_attributes(span, timeline),
            [made_event(event, base) for event in span_events],
            status=made_status(any(event.name == FAILOVER for event in span_events)),
            start_time=nanoseconds(base + span.begin),
            end_time=nanoseconds(base + max(span.begin, end)),
            instrumentation_scope=self.scope,
        )


def is_shared(span: TimeSpan) -> bool:
    """Return whether a part is one of the HTTP request, so that each of its requests has it."""
    return span.process == PROXY and span.attempt is None and span.name != QUEUE


def http_attributes(trace: ServedTrace) -> dict[str, Any]:
    return {
        "http.request.method": trace.method,
        "http.route": trace.received.route,
        "url.scheme": "http",
        "url.path": trace.received.route,
        "http.response.status_code": trace.status or 0,
        "gen_ai.request.id": trace.request_id,
    }


def request_attributes(trace: ServedTrace) -> dict[str, Any]:
    """Return what was asked for and used; of several prompts the sums, and the times of the slowest."""
    clients = [request for request in trace.requests if not is_later_stage(request.timeline.row)]
    if not clients:
        return {}
    # A recording is heard by a request of its own, without a prompt.
    clients.sort(key=lambda client: -client.timeline.row.prompt_tokens)
    rows, params = [client.timeline.row for client in clients], clients[0].params
    prompt, completion = sum(row.prompt_tokens for row in rows), sum(row.completion_tokens for row in rows)
    operation = next((name for path, name in OPERATIONS if trace.received.route.startswith(path)), None)
    operation_attributes: dict[str, Any] = {} if operation is None else {"gen_ai.operation.name": operation}
    if operation not in (EMBEDDINGS, RERANK):
        operation_attributes |= {
            "gen_ai.request.max_tokens": params.max_tokens,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.request.n": params.n,
        }
    first = [row.first_token_seconds for row in rows if row.first_token_seconds is not None]
    latency = {"gen_ai.latency.time_to_first_token": max(first)} if first else {}
    return {
        **operation_attributes,
        "gen_ai.provider.name": "pontil",
        "gen_ai.request.model": rows[0].model,
        "gen_ai.response.model": rows[0].model,
        "gen_ai.usage.prompt_tokens": prompt,
        "gen_ai.usage.completion_tokens": completion,
        "gen_ai.usage.input_tokens": prompt,
        "gen_ai.usage.output_tokens": completion,
        "gen_ai.usage.cache_read.input_tokens": sum(row.cached_tokens for row in rows),
        "gen_ai.response.finish_reasons": [reason for row in rows for reason in (row.finish or "").split(",")],
        "gen_ai.latency.e2e": max(row.seconds for row in rows),
        "gen_ai.latency.time_in_queue": max(time_in_queue(client.timeline) for client in clients),
        "pontil.state": next((row.state for row in rows if row.state in (FAILED, CANCELLED)), rows[0].state),
        "pontil.attempts": max(row.attempts for row in rows),
        **latency,
    }


def is_later_stage(row: TimelineRow) -> bool:
    """Return whether a request is for a further stage of a model of several, which bills nothing of its own."""
    return row.stage is not None and row.id.endswith(f".{row.stage}")


def time_in_queue(timeline: Timeline) -> float:
    """Return the seconds in the queues of the proxy and of the workers that computed the prompt."""
    computing = {(span.process, span.attempt) for span in timeline.spans if span.name == COMPUTE}
    waits = (span for span in timeline.spans if span.name == QUEUE)
    counted_waits = [span for span in waits if span.process == PROXY or (span.process, span.attempt) in computing]
    return sum(span.end - span.begin for span in counted_waits if span.end is not None)


def part_attributes(span: TimeSpan, timeline: Timeline) -> dict[str, Any]:
    attributes = {
        "gen_ai.request.id": timeline.row.id,
        "pontil.attempt": span.attempt,
        "pontil.tokens": span.tokens,
        "pontil.blocks": span.blocks,
        "pontil.bytes": span.bytes,
        "pontil.stage": timeline.row.stage,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def made_event(event: TimeEvent, base: float) -> Event:
    reason = {} if event.reason is None else {"pontil.reason": event.reason}
    return Event(event.name, {"pontil.process": event.process, **reason}, nanoseconds(base + event.at))


def made_status(is_fault: bool) -> Status:
    return Status(StatusCode.ERROR if is_fault else StatusCode.UNSET)


def nanoseconds(seconds: float) -> int:
    return int(seconds * PER_SECOND)
