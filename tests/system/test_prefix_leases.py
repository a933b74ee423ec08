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
