# SPDX-License-Identifier: Apache-2.0
"""Export of complete traces to an OpenTelemetry collector, by OTLP over HTTP, in a thread of its own."""

import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from pontil.runtime.threads import ThreadFailures, TurnThread
from pontil.runtime.tracing.span_tree import SpanTree
from pontil.runtime.tracing.tracer import ServedTrace, SpanCounts

LOG = logging.getLogger("pontil.tracing")
THREAD = "spans"
# The exporter logs each batch that fails; we log the first one.
LIBRARY = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")
# Traces that wait at most, and spans that are sent together. To encode them takes the interpreter about 4 ms, in turns
# with the event loop.
MOST_TRACES, BATCH_SPANS = 2048, 128
# Pauses between two looks for complete traces.
PAUSE_SECONDS = 0.5
# The pause after the spans of a trace were made, and the wait for the thread once it was told to give up.
REST_SECONDS, LAST_SECONDS = 0.001, 0.25
# The longest time for one batch, tries included.
EXPORT_SECONDS = 5.0
# The longest time that the end of the proxy waits for the last traces.
CLOSE_WITHIN = 1.5
LONGEST_WORDS = 300


@dataclass(frozen=True, slots=True)
class Collector:
    """A collector and who sends to it: the name of the proxy's process, and the version."""

    endpoint: str
    headers: Sequence[tuple[str, str]]
    process: str
    version: str


class LastWords(logging.Filter):
    """Logging filter that drops everything and keeps the first sentence since it was asked last."""

    def __init__(self) -> None:
        super().__init__()
        self.words = ""

    def filter(self, record: logging.LogRecord) -> bool:
        self.words = self.words or record.getMessage()[:LONGEST_WORDS]
        return False

    def take(self) -> str:
        words, self.words = self.words, ""
        return words


class ResourceTable:
    """The resource of each process of the system, by its name. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, which
    the library reads, win over our names of the service."""

    def __init__(self, version: str) -> None:
        service_resource = Resource({"service.name": "pontil", "service.version": version})
        self.common = service_resource.merge(OTELResourceDetector().detect())
        self.by_process: dict[str, Resource] = {}

    def of(self, process: str) -> Resource:
        if process not in self.by_process:
            self.by_process[process] = self.common.merge(Resource({"service.instance.id": process}))
        return self.by_process[process]


class OtlpExport:
    """Traces on their way to a collector. `put` never waits: traces beyond MOST_TRACES are dropped and counted, as are
    those that the collector does not take within EXPORT_SECONDS."""

    def __init__(self, collector: Collector, counts: SpanCounts, failures: ThreadFailures) -> None:
        self.collector, self.counts, self.failures = collector, counts, failures
        self.exporter = OTLPSpanExporter(
            endpoint=collector.endpoint, headers=dict(collector.headers), timeout=EXPORT_SECONDS
        )
        self.said = LastWords()
        LIBRARY.addFilter(self.said)
        self.resources = ResourceTable(collector.version)
        self.scope = InstrumentationScope("pontil", collector.version)
        self.waiting: deque[ServedTrace] = deque()
        self.making = 0
        self.is_down = False
        self.given_up = threading.Event()
        self.thread = TurnThread(self.turn, THREAD, failures, self.mend)

    def start(self) -> None:
        self.thread.start()

    def put(self, trace: ServedTrace) -> None:
        """Take a trace. Called in the event loop."""
        if len(self.waiting) < MOST_TRACES:
            self.waiting.append(trace)
        else:
            self.counts.drop(trace.span_count, "queue")

    def close(self, within: float = CLOSE_WITHIN) -> None:
        """Send what waits, as far as that takes no longer than `within` seconds. Called in any thread but ours."""
        if self.given_up.is_set():
            return
        self.thread.close(within)
        self.given_up.set()
        # Wakes the thread from a pause between two tries.
        self.exporter.shutdown()
        self.thread.close(LAST_SECONDS)
        LIBRARY.removeFilter(self.said)
        late = list(self.waiting)
        if late:
            LOG.warning("%d traces did not reach %s in time", len(late), self.collector.endpoint)
        self.counts.drop(sum(trace.span_count for trace in late), "collector")

    def turn(self) -> float | None:
        self.send_all()
        return None if self.thread.closing.is_set() else PAUSE_SECONDS

    def send_all(self) -> None:
        """Send the traces that wait now, unless there is no time left."""
        for _ in range(len(self.waiting)):
            if not self.waiting or self.given_up.is_set():
                return
            self.send(self.batch())

    def batch(self) -> list[ReadableSpan]:
        """Make the spans of some traces. A trace that cannot be made takes no other with it."""
        spans: list[ReadableSpan] = []
        while self.waiting and len(spans) < BATCH_SPANS and not self.given_up.is_set():
            trace = self.waiting.popleft()
            if self.failures.contain(THREAD, self.make, trace, spans) is not None:
                self.counts.drop(trace.span_count, "fault")
            # Another thread gets the interpreter, above all the event loop.
            self.thread.closing.wait(REST_SECONDS)
        return spans

    def make(self, trace: ServedTrace, spans: list[ReadableSpan]) -> None:
        spans += list(SpanTree(trace, self.collector.process, self.resources.of, self.scope).spans())

    def send(self, spans: Sequence[ReadableSpan]) -> None:
        self.making = len(spans)
        is_taken = self.exporter.export(spans) is SpanExportResult.SUCCESS
        self.making, words = 0, self.said.take()
        if is_taken:
            self.counts.took(len(spans))
        else:
            self.counts.drop(len(spans), "collector")
        if is_taken is self.is_down:
            self.is_down = not is_taken
            self.tell(words)

    def tell(self, words: str) -> None:
        """Log that the collector takes no spans any more, or takes them again."""
        if self.is_down:
            LOG.warning("traces do not reach %s, and are dropped until they do: %s", self.collector.endpoint, words)
        else:
            LOG.info("traces reach %s again", self.collector.endpoint)

    def mend(self, error: BaseException) -> None:
        """Count spans that were lost by a fault of ours."""
        self.counts.drop(self.making, "fault")
        self.making = 0
