# SPDX-License-Identifier: Apache-2.0
"""One page of metrics for several proxies."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pontil.runtime.proxy.metrics import pages as metrics_pages
from pontil.runtime.proxy.metrics.pages import STALE, MetricsPages, merged


def page(amount: int) -> bytes:
    registry = CollectorRegistry()
    Counter("made", "What was made", ["worker"], registry=registry).labels('a "b"').inc(amount)
    Counter("plain", "Without labels", registry=registry).inc(amount)
    Histogram("seconds", "Times", registry=registry, buckets=(1.0,)).observe(amount)
    return generate_latest(registry)


def whole(pages: MetricsPages) -> bytes:
    """Return the page of a scrape behind an earlier one."""
    pages.ask()
    return asyncio.run(pages.whole())


def leave(pages: MetricsPages) -> None:
    pages.write(pages.render())


def test_pages_are_merged_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time, whoever asks."""
    merging, made = threading.Semaphore(0), list[int]()

    def slow(pages: Mapping[str, bytes]) -> bytes:
        made.append(threading.get_ident())
        assert merging.acquire(timeout=60)
        return b"merged"

    monkeypatch.setattr(metrics_pages, "merged", slow)
    rendered = list[int]()

    def render() -> bytes:
        rendered.append(threading.get_ident())
        return b""

    pages = MetricsPages(tmp_path, "p:0", render)
    pages.ask()

    async def run() -> None:
        asked = [asyncio.ensure_future(pages.whole()) for _ in range(3)]
        while not made:
            await asyncio.sleep(0.001)
        assert len(made) == 1 and not any(one.done() for one in asked)
        for _ in asked:
            merging.release()
        assert await asyncio.gather(*asked) == [b"merged"] * 3

    asyncio.run(run())
    assert len(made) == 3 and threading.get_ident() not in made and set(rendered) == {threading.get_ident()}


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
    assert whole(one).count(b'plain_total{proxy="p:') == 1
    leave(two)
    assert b'plain_total{proxy="p:0"} 1.0' in whole(one) and b'plain_total{proxy="p:1"} 2.0' in whole(one)
    two.close()
    assert b"p:1" not in whole(one)


def test_pages_are_made_while_somebody_scrapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making one holds up all answers of a proxy. The first scrape waits until the others have left theirs."""
    made = list[str]()

    def rendering(name: str) -> Callable[[], bytes]:
        def render() -> bytes:
            made.append(name)
            return page(1)

        return render

    one, two = (MetricsPages(tmp_path, name, rendering(name)) for name in ("p:0", "p:1"))
    asyncio.run(two.look())
    assert not made

    async def wait(seconds: float) -> None:
        assert seconds == metrics_pages.FIRST_WAIT
        for _ in range(3):
            await two.look()

    monkeypatch.setattr(asyncio, "sleep", wait)
    assert b"p:1" in asyncio.run(one.whole()) and made == ["p:1", "p:0"], "it is left once, and then in its turn"
    monkeypatch.setattr(asyncio, "sleep", None)
    assert b"p:1" in asyncio.run(one.whole()), "the next one waits for nobody"
    passed = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: passed() + metrics_pages.EVERY)
    asyncio.run(two.look())
    assert made.count("p:1") == 2
    monkeypatch.setattr(time, "monotonic", lambda: passed() + metrics_pages.ASKED_FOR + 1)
    asyncio.run(two.look())
    assert made.count("p:1") == 2, "nobody asks any more"


def test_a_page_that_nobody_renews_is_left_out(tmp_path: Path) -> None:
    """Its proxy is gone or stands still: its requests in flight are none that run."""
    one, two = (MetricsPages(tmp_path, f"p:{number}", lambda number=number: page(number + 1)) for number in range(2))  # type: ignore[misc]
    leave(two)
    assert b"p:1" in whole(one)
    path, then = tmp_path / "p:1.metrics", time.monotonic() - STALE - 1
    os.utime(path, (then, then))
    assert b"p:1" not in whole(one) and b"p:0" in whole(one)


@pytest.mark.parametrize("ahead", [-7200.0, 7200.0])
def test_a_page_is_as_old_as_it_is_whatever_the_clock_of_the_day_says(
    tmp_path: Path, ahead: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (MetricsPages(tmp_path, f"p:{number}", lambda number=number: page(number + 1)) for number in range(2))  # type: ignore[misc]
    leave(two)
    shown, passed = time.time, time.monotonic
    monkeypatch.setattr(time, "time", lambda: shown() + ahead)
    assert b"p:1" in whole(one)
    monkeypatch.setattr(time, "monotonic", lambda: passed() + STALE + 1)
    assert b"p:1" not in whole(one)


def picked(running: int, used: float) -> bytes:
    registry = CollectorRegistry()
    Gauge("vllm:num_requests_running", "Requests", ["model_name"], registry=registry).labels("m").set(running)
    Gauge("vllm:kv_cache_usage_perc", "Blocks", ["model_name"], registry=registry).labels("m").set(used)
    Info("vllm:cache_config", "Size", registry=registry).info({"block_size": "16"})
    return generate_latest(registry)


def test_who_picks_a_server_finds_one_sample_of_all_proxies() -> None:
    text = merged({"p:0": picked(3, 0.5), "p:1": picked(4, 0.25)}).decode()
    found = {one.name: (one.labels, one.value) for family in text_string_to_metric_families(text)
             for one in family.samples}  # fmt: skip
    assert found == {
        "vllm:num_requests_running": ({"model_name": "m"}, 7.0),
        "vllm:kv_cache_usage_perc": ({"model_name": "m"}, 0.5),
        "vllm:cache_config_info": ({"block_size": "16"}, 1.0),
    }
    assert "proxy" not in text and text.count("# TYPE vllm:num_requests_running") == 1
