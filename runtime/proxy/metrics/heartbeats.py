# SPDX-License-Identifier: Apache-2.0
"""The Prometheus series of what workers count and measure in their heartbeats."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.core import GaugeMetricFamily

from pontil.runtime.foundation.connectors import CONNECTORS

TIERS = ("memory", "disk")
RESULTS = ("complete", "failed", "expired", "cancelled")
# The places of right guesses in a draft, and the threads of workers.
PLACES = tuple(str(place) for place in range(16))
THREADS = ("doorkeeper", "grammars", "kv-tier", *(name for row in CONNECTORS.values() for name in row.threads))
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
    "leased_blocks": "KV blocks of these that leases keep there",
    "least_tokens": "Fewest tokens that are read from a tier of a worker; 0 where computing is sooner",
}


@dataclass(frozen=True, slots=True)
class CounterRow:
    """A counter in heartbeats, or several that begin with this `name` and go on with one of the `parts`, which are a
    label then: what a worker makes up is no series. `worker` is the label for the worker's name, if it has one. The
    `series` is named as the counter unless it says otherwise."""

    name: str
    says: str
    worker: str | None = None
    series: str | None = None
    part: str | None = None
    parts: tuple[str, ...] = ("",)


# The series of drafts have vLLM's names but for the prefix.
DRAFTS = "spec_decode_num_"
COUNTERS = (
    CounterRow("handoffs_", "Handoffs from prefill to decode", None, "handoffs", "result", RESULTS),
    CounterRow("drafts", "Drafts verified, of one or more tokens each", "worker", f"{DRAFTS}drafts"),
    CounterRow("draft_tokens", "Tokens guessed and verified", "worker", f"{DRAFTS}draft_tokens"),
    CounterRow("accepted_draft_tokens", "Guesses that were right", "worker", f"{DRAFTS}accepted_tokens"),
    CounterRow(
        "accepted_draft_tokens_at_",
        "Right guesses by their place in the draft",
        "worker",
        f"{DRAFTS}accepted_tokens_per_pos",
        "position",
        PLACES,
    ),
    *(CounterRow(name, says, "worker") for name, says in (STREAM_COUNTERS | TIER_COUNTERS).items()),
    CounterRow("kv_transfer_bytes", "Bytes of KV blocks pulled"),
    CounterRow("prefix_cache_queries", "Prompt tokens looked up in a prefix cache"),
    CounterRow("prefix_cache_hits", "Prompt tokens found there"),
    CounterRow("preemptions", "Sequences that lost their blocks to an older one", None, "num_preemptions"),
    CounterRow("recomputed_tokens", "Positions computed again, after preemption or a failed transfer or at leisure"),
    CounterRow("results_dropped", "Results for requests that their worker no longer knew"),
    CounterRow("stale_messages", "Messages to workers that came too late to be used", None, "worker_stale_messages"),
    CounterRow("malformed_frames", "Frames to workers that were no messages", None, "worker_malformed_frames"),
    CounterRow(
        "thread_failures_",
        "Faults of ours that a thread met and survived",
        "process",
        "thread_failures",
        "thread",
        THREADS,
    ),
)


class HeartbeatCounters:
    """The series of COUNTERS: each family by its counters' `name`, and by the name of each counter in a heartbeat."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.families: dict[str, Counter] = {}
        self.by_name: dict[str, tuple[CounterRow, str]] = {}
        for row in COUNTERS:
            labels = [label for label in (row.worker, row.part) if label is not None]
            family = Counter(f"pontil_{row.series or row.name}", row.says, labels, registry=registry)
            self.families[row.name] = family
            for part in row.parts:
                self.by_name[row.name + part] = row, part
                if labels == [row.part]:
                    family.labels(part)

    def add(self, worker: str, grown: Mapping[str, int]) -> None:
        """Add the growth of a worker's counters. Unknown names are ignored."""
        for name, difference in grown.items():
            if name in self.by_name:
                row, part = self.by_name[name]
                labels = [value for label, value in ((row.worker, worker), (row.part, part)) if label is not None]
                family = self.families[row.name]
                (family.labels(*labels) if labels else family).inc(difference)


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
