# SPDX-License-Identifier: Apache-2.0
"""The Prometheus series by worker of what heartbeats measure: streams between stages, and tiers below KV pools."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.core import GaugeMetricFamily

TIERS = ("memory", "disk")
# By their names in a heartbeat.
STREAM_COUNTERS = {
    "stream_items": "Items of another stage that a worker pulled",
    "stream_bytes": "Bytes of these items",
}
TIER_COUNTERS = {
    "kv_tier_hit_tokens": "Prompt tokens that were read from a tier and not computed",
    "kv_tier_stored_blocks": "Evicted KV blocks that were put into a tier",
    "kv_tier_loaded_blocks": "KV blocks that were read from a tier",
    "kv_tier_dropped_blocks": "Evicted KV blocks that no tier got, since the thread that stores them was behind",
    "kv_tier_damaged_blocks": "KV blocks of a tier that were not as they had been stored, and were computed",
    "kv_tier_refused_loads": "Prompts with blocks in a tier that were computed, since that was expected to be sooner",
    "kv_tier_late_loads": "Reads from a tier that took longer than computing, and were given up",
    "kv_tier_failures": "Tiers that failed and were switched off",
}
STREAM_GAUGES = {
    "stream_kept_bytes": "Bytes of items that a worker keeps for the stages that read them",
    "stream_free_blocks": "Blocks for items on their way that a worker has free",
    "stream_items_ahead": "Items that a worker's stage has made and its reader has not used, of the stream with most",
    "streams_full": "Streams whose stage rests, since its reader is behind",
}
# By the end of its name in a heartbeat.
TIER_GAUGES = {
    "blocks": "KV blocks in a tier of a worker",
    "least_tokens": "Fewest tokens that are read from a tier of a worker; 0 where computing is sooner",
}


class HeartbeatCounters:
    """A counter for each name that a heartbeat may have, by worker."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.by_name = {
            name: Counter(f"pontil_{name}", says, ["worker"], registry=registry)
            for name, says in (STREAM_COUNTERS | TIER_COUNTERS).items()
        }

    def add(self, worker: str, name: str, difference: int) -> bool:
        """Add the growth of a counter; return whether it is one of these."""
        if name in self.by_name:
            self.by_name[name].labels(worker).inc(difference)
        return name in self.by_name


def heartbeat_gauges(workers: Iterable[tuple[str, Mapping[str, int]]]) -> Iterator[Metric]:
    """Yield the gauges, given each worker's name and what its last heartbeat measured. A worker without streams or
    tiers has none of theirs."""
    worker_gauges = list(workers)
    for name, says in STREAM_GAUGES.items():
        family = GaugeMetricFamily(f"pontil_worker_{name}", says, labels=["worker"])
        for worker, gauges in worker_gauges:
            if name in gauges:
                family.add_metric([worker], gauges[name])
        yield family
    for name, says in TIER_GAUGES.items():
        family = GaugeMetricFamily(f"pontil_worker_kv_tier_{name}", says, labels=["worker", "tier"])
        for worker, gauges in worker_gauges:
            for tier in TIERS:
                if f"kv_tier_{tier}_{name}" in gauges:
                    family.add_metric([worker, tier], gauges[f"kv_tier_{tier}_{name}"])
        yield family
