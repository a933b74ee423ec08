# SPDX-License-Identifier: Apache-2.0
"""The dashboard and the alerts by a real Prometheus: every rule is valid and fires on its fault, and every panel has an
answer from a server that has served."""

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from served import ROOT, Served, free_port, wait_for

DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "pontil.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ANSWER_TIMEOUT = 60.0
# Series that workers and the supervisor tell every proxy.
SHARED = re.compile(
    "pontil_(worker_|process_|handoffs_|kv_transfer_|prefix_cache_|num_preemptions_|recomputed_|kv_tier_|stream_|spec_)"
)
LABELS = ", ".join(
    f'{name}="x"' for name in ("finished_reason", "reason", "result", "cause", "worker", "process", "thread")
)

needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")), reason="needs Prometheus: apt-get install prometheus"
)


@needs_prometheus
def test_each_alert_fires_on_its_fault_and_on_no_other(tmp_path: Path) -> None:
    for file in (DEPLOY / "prometheus" / "alerts.yml", ROOT / "tests" / "deploy" / "alerts_test.yml"):
        shutil.copy(file, tmp_path)
    done = subprocess.run(
        ["promtool", "test", "rules", "alerts_test.yml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    config = DEPLOY / "prometheus" / "prometheus.yml"
    done = subprocess.run(["promtool", "check", "config", str(config)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested() -> None:
    named = [
        line.split()[-1] for line in (DEPLOY / "prometheus" / "alerts.yml").read_text().splitlines() if "alert:" in line
    ]
    tests = (ROOT / "tests" / "deploy" / "alerts_test.yml").read_text()
    assert named and not [name for name in named if f'"{name}"' not in tests]


@needs_prometheus
def test_every_panel_has_an_answer(pair: Served, tmp_path: Path) -> None:
    for number in range(4):
        pair.complete(f"{number} is a number, and after it", max_tokens=6)
    # Samples come once a second: a rate needs two.
    unanswered = {
        target["expr"].replace("$__rate_interval", "10s").replace("$job", ".*"): panel["title"]
        for panel in PANELS
        for target in panel["targets"]
    }
    with prometheus(pair.port, tmp_path) as url:
        wait_for(lambda: ask(url, 'count_over_time(up{job="pontil"}[1m]) >= 3'), ANSWER_TIMEOUT, "samples")
        for query in list(unanswered):
            if ask(url, query):
                del unanswered[query]
    assert not unanswered


@needs_prometheus
@pytest.mark.long  # not held by another
def test_no_panel_counts_twice_with_two_proxies(tmp_path: Path) -> None:
    """Workers and the supervisor's table are on the page of each proxy, requests on one of them."""
    series, tests = [], []
    for name in sorted({name for panel in PANELS for target in panel["targets"]
                        for name in re.findall(r"pontil_\w+", target["expr"])}):  # fmt: skip
        grows = name.endswith(("_total", "_sum", "_count", "_bucket"))
        for labels in ['le="1"', 'le="+Inf"'] if name.endswith("_bucket") else ['rank="0"', 'rank="1"']:
            for job, proxies in (("one", 1), ("two", 2)):
                share = 8 if proxies == 1 or SHARED.match(name) else 4
                values = f"0+{share}x60" if grows else f"{share}x60"
                series += [
                    f'{name}{{instance="a", job="{job}", proxy="proxy:{number}", {labels}, {LABELS}}} {values}'
                    for number in range(proxies)
                ]
    for panel in PANELS:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "5m")
            one, two = (f"({query.replace('$job', job)})" for job in ("one", "two"))
            tests.append(f"count({one} == bool {two}) - sum({one} == bool {two})")
    (tmp_path / "test.yml").write_text(json.dumps({
        "evaluation_interval": "1m",
        "tests": [{
            "interval": "1m",
            "input_series": [dict(zip(("series", "values"), one.rsplit(" ", 1), strict=True)) for one in series],
            "promql_expr_test": [
                {"expr": one, "eval_time": "40m", "exp_samples": [{"labels": "{}", "value": 0}]} for one in tests
            ],
        }],
    }))  # fmt: skip
    done = subprocess.run(["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_is_whole() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert all(panel["title"] and panel["description"] and panel["targets"] for panel in PANELS)
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24, "no panel lies over another"


@contextmanager
def prometheus(target: int, folder: Path) -> Iterator[str]:
    """Run a Prometheus that scrapes a server on this machine every second, and yield its address."""
    config = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    config = config.replace("127.0.0.1:8000", f"127.0.0.1:{target}").replace(
        "scrape_interval: 15s", "scrape_interval: 1s"
    )
    (folder / "prometheus.yml").write_text(config)
    shutil.copy(DEPLOY / "prometheus" / "alerts.yml", folder)
    url = f"http://127.0.0.1:{free_port()}"
    command = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    command.append(f"--web.listen-address={url.removeprefix('http://')}")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        yield url
    finally:
        process.terminate()
        process.wait(60)


def ask(url: str, query: str) -> list[dict[str, Any]]:
    """Return the series that answer a query now; none while the server starts."""
    try:
        with urllib.request.urlopen(
            f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}", timeout=10
        ) as got:
            found: list[dict[str, Any]] = json.load(got)["data"]["result"]
            return found
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise ValueError(f"{query}: {error.read().decode()}") from None
        return []
    except OSError:
        return []
