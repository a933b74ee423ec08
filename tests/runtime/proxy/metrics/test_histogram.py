# SPDX-License-Identifier: Apache-2.0
"""The fast histogram shows what the library's own shows."""

import re

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from pontil.runtime.proxy.metrics.latencies import SingleThreadHistogram

BUCKETS = (0.001, 0.0025, 1, 10, 100000)
# The times at which histograms were made and exemplars were taken.
TIMES = re.compile(rb"_created .*|(?<=[0-9]) [0-9]+\.[0-9]+$", re.MULTILINE)


@given(st.lists(st.tuples(st.sampled_from([0.0, *BUCKETS]) | st.floats(0, 100), st.sampled_from([None, "a", "b"]))))
def test_it_shows_what_a_histogram_shows(values: list[tuple[float, str | None]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    fast, histogram = (
        SingleThreadHistogram("a_seconds", "Says", BUCKETS, ours),
        Histogram("a_seconds", "Says", buckets=BUCKETS, registry=theirs),
    )
    for value, name in values:
        exemplar = None if name is None else {"request_id": name}
        fast.observe(value, exemplar)
        histogram.observe(value, exemplar)
    for shown in (generate_latest, generate_openmetrics):
        assert TIMES.sub(b"", shown(ours)).splitlines() == TIMES.sub(b"", shown(theirs)).splitlines()
    assert ours.get_sample_value("a_seconds_count") == len(values)
