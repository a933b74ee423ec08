# SPDX-License-Identifier: Apache-2.0
"""Counters of drafts become series; names that a worker makes up do not."""

from prometheus_client import CollectorRegistry

from pontil.runtime.engine.engine import DraftCounts
from pontil.runtime.proxy.metrics.heartbeats import HeartbeatCounters


def test_right_guesses_are_counted_by_their_place() -> None:
    counts = DraftCounts()
    for guessed, right in ((4, 4), (4, 2), (0, 0), (3, 0)):
        counts.add(guessed, right)
    assert (counts.drafts, counts.guessed, counts.right, counts.right_at) == (3, 11, 6, [2, 2, 1, 1])
    assert sum(counts.right_at) == counts.right


def test_only_known_counters_become_series() -> None:
    registry = CollectorRegistry()
    series = HeartbeatCounters(registry)
    families = len(list(registry.collect()))
    made_up = ("accepted_draft_tokens_at_16", "accepted_draft_tokens_at_x", "accepted_draft_tokens_at_", "other")
    series.add("decode:0", dict.fromkeys(made_up, 1))
    assert len(list(registry.collect())) == families and not any(
        "position" in sample.labels for metric in registry.collect() for sample in metric.samples
    )
    series.add("decode:0", {"drafts": 3, "accepted_draft_tokens_at_15": 2})
    prefix = "pontil_spec_decode_num"
    assert registry.get_sample_value(f"{prefix}_drafts_total", {"worker": "decode:0"}) == 3
    labels = {"worker": "decode:0", "position": "15"}
    assert registry.get_sample_value(f"{prefix}_accepted_tokens_per_pos_total", labels) == 2
