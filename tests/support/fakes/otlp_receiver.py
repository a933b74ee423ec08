# SPDX-License-Identifier: Apache-2.0
"""An OpenTelemetry collector on loopback: takes traces by OTLP over HTTP and keeps them, or misbehaves as told."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage

KINDS = {SpanMessage.SPAN_KIND_INTERNAL: "internal", SpanMessage.SPAN_KIND_SERVER: "server"}
ERROR = 2


@dataclass(frozen=True)
class ReceivedEvent:
    name: str
    at: int
    attributes: dict[str, Any]


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it was on the wire; ids in hexadecimal, times in nanoseconds since 1970."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    state: str
    kind: str
    begin: int
    end: int
    attributes: dict[str, Any]
    events: tuple[ReceivedEvent, ...]
    is_error: bool
    resource: dict[str, Any]

    @property
    def process(self) -> str:
        return str(self.resource["service.instance.id"])


class OtlpReceiver:
    """A collector at `url`. `spans` are those of all requests so far, `headers` those of the last. It answers with
    `status`, after `answering` is set."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.paths: list[str] = []
        self.headers: dict[str, str] = {}
        self.status = 200
        self.answering = threading.Event()
        self.answering.set()
        self.asked = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(self))
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def of_trace(self, trace_id: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.trace_id == trace_id]

    def take(self, path: str, headers: dict[str, str], body: bytes) -> int:
        self.paths.append(path)
        self.headers = headers
        self.asked.set()
        self.answering.wait(60)
        if self.status == 200:
            self.spans += spans_of(ExportTraceServiceRequest.FromString(body))
        return self.status


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    receiver = OtlpReceiver()
    receiver.thread.start()
    try:
        yield receiver
    finally:
        receiver.answering.set()
        receiver.server.shutdown()
        receiver.thread.join(10)
        receiver.server.server_close()


def handler_of(receiver: OtlpReceiver) -> type[BaseHTTPRequestHandler]:
    class OtlpHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response(receiver.take(self.path, headers, body))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    return OtlpHandler


def spans_of(message: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for of_resource in message.resource_spans:
        resource = values(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield received(span, resource)


def received(span: SpanMessage, resource: dict[str, Any]) -> ReceivedSpan:
    events = tuple(ReceivedEvent(one.name, one.time_unix_nano, values(one.attributes)) for one in span.events)
    return ReceivedSpan(
        span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), span.trace_state,
        KINDS[span.kind], span.start_time_unix_nano, span.end_time_unix_nano, values(span.attributes), events,
        span.status.code == ERROR, resource,
    )  # fmt: skip


def values(attributes: Any) -> dict[str, Any]:
    return {one.key: value_of(one.value) for one in attributes}


def value_of(value: Any) -> Any:
    kind = value.WhichOneof("value")
    found = getattr(value, kind)
    return [value_of(one) for one in found.values] if kind == "array_value" else found
