# SPDX-License-Identifier: Apache-2.0
"""The Prometheus series of spans for a collector. Thread-safe."""

from prometheus_client import CollectorRegistry, Counter

# Causes of a dropped span: too many traces waited, the collector did not take it, or we could not make it.
DROPS = QUEUE_FULL, REFUSED, FAULT = ("queue", "collector", "fault")


class SpanMetrics:
    """Counters of exported and of dropped spans."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.exported = Counter("pontil_spans_exported", "Spans that the collector of traces took", registry=registry)
        self.dropped = Counter(
            "pontil_spans_dropped", "Spans that the collector of traces did not get", ["reason"], registry=registry
        )
        for reason in DROPS:
            self.dropped.labels(reason)

    def took(self, spans: int) -> None:
        self.exported.inc(spans)

    def drop(self, spans: int, reason: str) -> None:
        self.dropped.labels(reason).inc(spans)
