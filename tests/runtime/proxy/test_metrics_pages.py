# SPDX-License-Identifier: Apache-2.0
"""One page of metrics for several proxies."""

from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pontil.runtime.proxy.metrics_pages import MetricsPages, merged


def page(amount: int) -> bytes:
    registry = CollectorRegistry()
    Counter("made", "What was made", ["worker"], registry=registry).labels('a "b"').inc(amount)
    Counter("plain", "Without labels", registry=registry).inc(amount)
    Histogram("seconds", "Times", registry=registry, buckets=(1.0,)).observe(amount)
    return generate_latest(registry)


def test_every_sample_is_there_once_and_says_whose_it_is(tmp_path: Path) -> None:
    families = {
        one.name: one for one in text_string_to_metric_families(merged({"p:0": page(1), "p:1": page(2)}).decode())
    }
    shown = {(one.labels["proxy"], one.labels["worker"]): one.value for one in families["made"].samples
             if one.name == "made_total"}  # fmt: skip
    assert shown == {("p:0", 'a "b"'): 1.0, ("p:1", 'a "b"'): 2.0}
    assert families["plain"].type == "counter" and families["seconds"].type == "histogram"
    sums = {one.labels["proxy"]: one.value for one in families["seconds"].samples if one.name == "seconds_sum"}
    assert sums == {"p:0": 1.0, "p:1": 2.0}


def test_a_page_is_left_for_the_others(tmp_path: Path) -> None:
    one, two = (MetricsPages(tmp_path, f"p:{number}", lambda number=number: page(number + 1)) for number in range(2))  # type: ignore[misc]
    assert one.whole().count(b'plain_total{proxy="p:') == 1
    two.leave()
    assert b'plain_total{proxy="p:0"} 1.0' in one.whole() and b'plain_total{proxy="p:1"} 2.0' in one.whole()
    two.close()
    assert b"p:1" not in one.whole()
