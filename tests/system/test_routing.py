# SPDX-License-Identifier: Apache-2.0
"""Conversations with two prefill and two decode workers: later turns find what earlier ones left, wherever it is."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from served import ROOT, Served, launched

pytestmark = pytest.mark.long


def replay(served: Served, *options: str) -> dict[str, Any]:
    """Play recorded conversations, shortened to the model's context."""
    command = [sys.executable, str(ROOT / "scripts" / "bench_routing.py"), "--url", f"http://127.0.0.1:{served.port}"]
    lengths = ("--model", "tiny", "--scale", "0.25", "--longest", "480", "--vocabulary", "290")
    ran = subprocess.run([*command, *lengths, *options], capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    figures: dict[str, Any] = json.loads(ran.stdout)
    return figures


@pytest.mark.parametrize("prefill", ["cpu:0,cpu:0", "cpu:0+cpu:1,cpu:0"], ids=["plain", "ranks"])
def test_turns_go_to_the_workers_that_have_them(tmp_path: Path, model: str, prefill: str) -> None:
    """A turn finds all full blocks of what was said before: at least nine of ten tokens where turns are not short."""
    workers = ("--prefill", prefill, "--decode", "cpu:1,cpu:1", "--share-devices")
    with launched(tmp_path, "--model", model, "--kv-cache-memory", "16MiB", *workers) as served:
        figures = replay(served, "--conversations", "40", "--users", "6", "--pause", "0.1")
        assert figures["failures"] == 0 and figures["turns"] > 60
        assert figures["cached_of_repeated"] >= 0.85
        assert figures["whole_turns"] > 0, "some turns go whole to the decode worker that has the answer"
        assert figures["skew"]["decode"] <= 1.5 and set(figures["load"]) >= {"decode:0", "decode:1"}
        assert served.metric("pontil_prompt_tokens_cached_total") == figures["cached"]
        found = served.metric("pontil_routing_found_tokens_total")
        assert abs(found - figures["cached"]) <= 0.05 * figures["cached"], "what was expected is what was there"
        for name in figures["load"]:
            assert served.metric(f'pontil_worker_prefix_entries{{worker="{name}"}}') > 0
        assert served.metric("pontil_worker_malformed_frames_total") == 0


def test_by_load_alone_nothing_is_told(tmp_path: Path, model: str) -> None:
    workers = ("--prefill", "cpu:0,cpu:0", "--decode", "cpu:1,cpu:1", "--share-devices", "--routing", "load")
    with launched(tmp_path, "--model", model, "--kv-cache-memory", "16MiB", *workers) as served:
        figures = replay(served, "--conversations", "20", "--users", "4", "--pause", "0.1")
        assert figures["failures"] == 0 and figures["cached_of_repeated"] < 0.8
        assert served.metric("pontil_routing_found_tokens_total") == 0
        assert served.metric('pontil_worker_prefix_entries{worker="decode:0"}') == 0
