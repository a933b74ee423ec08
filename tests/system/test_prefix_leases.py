# SPDX-License-Identifier: Apache-2.0
"""Leases of a real launch: kept through a flood and the death of every worker in turn, and refunded when none comes."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from killed_workers import kill, wait_for_records
from served import START_TIMEOUT, Served, launched, wait_for

from pontil.runtime.accounting.usage_file import open_to_read

PREFIX = [3 + 7 * place % 200 for place in range(89)]
FLOOD = 60
OPTIONS = (
    "--kv-cache-memory", "1MiB", "--max-model-len", "256", "--restart-delay", "0.1", "--share-devices",
    "--prefill", "cpu:0", "--decode", "cpu:0",
)  # fmt: skip


def call(served: Served, method: str, path: str = "", body: Any = None) -> dict[str, Any]:
    reply = served.request(method, f"/v1/prefixes{path}", body)
    told: dict[str, Any] = reply.json()
    assert reply.status == 200, told
    return told


def cached(served: Served) -> int:
    told: dict[str, Any] = served.complete([*PREFIX, 7, 8, 9], max_tokens=1)
    count: int = told["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def flood(served: Served, first: int) -> None:
    """Compute prompts that nobody computed, of more blocks than all workers have."""
    for number in range(first, first + FLOOD):
        served.complete([5 + number % 190, 5 + number // 190, *PREFIX[2:60]], max_tokens=2, ignore_eos=True)


@pytest.mark.long
def test_a_lease_on_a_disk_is_found_after_its_worker_was_killed(tmp_path: Path, model: str) -> None:
    """The longest request may need all of the pool, and nothing of that outlives the worker: the disk has the lease."""
    options = "--role", "mixed", "--kv-cache-memory", "136KiB", "--max-model-len", "256", "--no-keep-kv"
    # Small steps, so that computing takes long enough for any disk.
    slow = "--max-num-batched-tokens", "4", "--restart-delay", "0.1", "--kv-tier", f"disk:{tmp_path}/kv:8MiB"
    with launched(tmp_path, "--model", model, *options, *slow) as served:
        kept = call(served, "POST", body={"prompt": PREFIX, "ttl": "1h", "model": "tiny"})
        path = f"/{kept['id']}"
        assert (kept["tokens"], kept["state"]) == (80, "held")
        leased = 'pontil_worker_kv_tier_leased_blocks{tier="disk",worker="mixed:0"}'
        wait_for(lambda: served.metric(leased) == 5, 60, "the disk")
        served.kill("mixed:0")
        restarted = 'pontil_process_restarts_total{process="mixed:0"}'
        wait_for(lambda: served.metric(restarted) == 1 and served.is_ready(), START_TIMEOUT, "the restart")
        wait_for(lambda: call(served, "GET", path)["state"] == "held", 60, "the lease")
        for number in range(8):
            served.complete([5 + number, *PREFIX[2:60]], model="tiny", max_tokens=2, ignore_eos=True)
        told = served.complete([*PREFIX, 7, 8, 9], model="tiny", max_tokens=1)
        assert told["usage"]["prompt_tokens_details"]["cached_tokens"] >= 80
        assert call(served, "DELETE", path)["byte_seconds"]["refunded"] == 0


@pytest.mark.long
def test_leased_tokens_are_hit_through_a_flood_and_the_death_of_every_worker(tmp_path: Path, model: str) -> None:
    name = "smollm2-135m-instruct"
    with launched(tmp_path, "--model", model, "--served-model-name", name, *OPTIONS) as served:
        kept = call(served, "POST", body={"prompt": PREFIX, "ttl": "1h"})
        assert (kept["tokens"], kept["state"], kept["usage"]["prompt_tokens"]) == (80, "held", 89)
        path = f"/{kept['id']}"
        for turn, worker in enumerate(("prefill:0", "decode:0")):
            flood(served, turn * FLOOD)
            assert cached(served) == 80
            wait_for_records(served, 5)
            kill(served, worker)
            wait_for(lambda: call(served, "GET", path)["state"] != "moving", START_TIMEOUT, "the lease's worker")
            assert call(served, "GET", path)["state"] == "held"
        flood(served, 2 * FLOOD)
        assert cached(served) == 80
        gone = call(served, "DELETE", path)
        amounts = gone["byte_seconds"]
        assert gone["state"] == "released" and amounts["refunded"] == 0
        assert amounts["granted"] == amounts["held"] + amounts["released"] and amounts["held"] > 0
        left = call(served, "POST", body={"prompt": PREFIX, "ttl": 600})
    with closing(open_to_read(served.usage_log)) as database:
        rows = dict(database.execute("SELECT id, outcome FROM leases").fetchall())
    assert rows == {kept["id"]: "released", left["id"]: "refunded"}, "what a launch leaves is refunded"
