# SPDX-License-Identifier: Apache-2.0
"""The Prometheus series of tiers below workers' KV pools, from workers' heartbeats."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.core import GaugeMetricFamily

TIERS = ("memory", "disk")
COUNTERS = {
    "kv_tier_hit_tokens": "Prompt tokens that were read from a tier and not computed",
    "kv_tier_stored_blocks": "Evicted KV blocks that were put into a tier",
    "kv_tier_loaded_blocks": "KV blocks that were read from a tier",
    "kv_tier_dropped_blocks": "Evicted KV blocks that no tier got, since the thread that stores them was behind",
    "kv_tier_damaged_blocks": "KV blocks of a tier that were not as they had been stored, and were computed",
    "kv_tier_refused_loads": "Prompts with blocks in a tier that were computed, since that was expected to be sooner",
    "kv_tier_late_loads": "Reads from a tier that took longer than computing, and were given up",
    "kv_tier_failures": "Tiers that failed and were switched off",
}
# By the end of its name in a heartbeat.
GAUGES = {
    "blocks": "KV blocks in a tier of a worker",
    "least_tokens": "Fewest tokens that are read from a tier of a worker; 0 where computing is sooner",
}


class TierMetrics:
    """The counters, by worker."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.by_name = {
            name: Counter(f"pontil_{name}", says, ["worker"], registry=registry) for name, says in COUNTERS.items()
        }

    def add(self, worker: str, name: str, difference: int) -> bool:
        """Add the growth of a counter; return whether it is one of these."""
        if name in self.by_name:
            self.by_name[name].labels(worker).inc(difference)
        return name in self.by_name


def tier_gauges(workers: Iterable[tuple[str, Mapping[str, int]]]) -> Iterator[Metric]:
    """Yield the gauges, given each worker's name and what its last heartbeat measured. A worker without tiers has
    none."""
    told = list(workers)
    for name, says in GAUGES.items():
        family = GaugeMetricFamily(f"pontil_worker_kv_tier_{name}", says, labels=["worker", "tier"])
        for worker, gauges in told:
            for tier in TIERS:
                if f"kv_tier_{tier}_{name}" in gauges:
                    family.add_metric([worker, tier], gauges[f"kv_tier_{tier}_{name}"])
        yield family
