# SPDX-License-Identifier: Apache-2.0
"""The Prometheus series of streams between stages, from workers' heartbeats."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.core import GaugeMetricFamily

# By its name in a heartbeat.
GAUGES = {
    "stream_kept_bytes": "Bytes of items that a worker keeps for the stages that read them",
    "stream_free_blocks": "Blocks for items on their way that a worker has free",
    "stream_items_ahead": "Items that a worker's stage has made and its reader has not used, of the stream with most",
    "streams_full": "Streams whose stage rests, since its reader is behind",
}


class StreamMetrics:
    """The counters, by worker."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.by_name = {
            name: Counter(f"pontil_{name}", says, ["worker"], registry=registry)
            for name, says in (
                ("stream_items", "Items of another stage that a worker pulled"),
                ("stream_bytes", "Bytes of these items"),
            )
        }

    def add(self, worker: str, name: str, difference: int) -> bool:
        """Add the growth of a counter; return whether it is one of these."""
        if name in self.by_name:
            self.by_name[name].labels(worker).inc(difference)
        return name in self.by_name


def stream_gauges(workers: Iterable[tuple[str, Mapping[str, int]]]) -> Iterator[Metric]:
    """Yield the gauges, given each worker's name and what its last heartbeat measured. A worker without streams has
    none."""
    told = list(workers)
    for name, says in GAUGES.items():
        family = GaugeMetricFamily(f"pontil_worker_{name}", says, labels=["worker"])
        for worker, gauges in told:
            if name in gauges:
                family.add_metric([worker], gauges[name])
        yield family
