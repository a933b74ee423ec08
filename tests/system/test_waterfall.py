# SPDX-License-Identifier: Apache-2.0
"""The timelines of requests, on a running launch of one prefill and one decode worker."""

from collections.abc import Sequence
from typing import Any

import pytest
from disturbed import MODEL
from oracle import at_rest
from served import Served, wait_for

PROMPT = [20 + 13 * number % 240 for number in range(1100)]


def named(shown: dict[str, Any], name: str, process: str) -> list[dict[str, Any]]:
    return [span for span in shown["spans"] if (span["name"], span["process"]) == (name, process)]


def waterfall(served: Served, name: str) -> dict[str, Any]:
    """Return the timeline of a request that has ended, once the workers of its last attempt have reported."""

    def whole() -> dict[str, Any] | None:
        shown: dict[str, Any] = served.get(f"/admin/requests/{name}")
        told = {span["process"] for span in shown["spans"] if span["attempt"] == shown["attempts"] - 1}
        return shown if shown["state"] != "open" and told >= set(shown["workers"]) else None

    return wait_for(whole, 60, f"the waterfall of {name}") or {}


def check(shown: dict[str, Any]) -> None:
    """Check what holds of every waterfall of a request that has ended."""
    attempts = {span["attempt"]: span for span in named(shown, "attempt", "proxy")}
    assert [span["begin"] for span in shown["spans"]] == sorted(span["begin"] for span in shown["spans"])
    for span in shown["spans"]:
        assert 0 <= span["begin"] <= span["end"], span
        if span["name"] != "write":
            assert span["end"] <= shown["seconds"], span
        if span["process"] != "proxy":
            assert attempts[span["attempt"]]["begin"] <= span["begin"], span
            assert span["end"] <= attempts[span["attempt"]]["end"], span
    gaps = shown["gaps"]
    assert gaps["begin"] == shown["first_token_seconds"] <= shown["seconds"]
    assert gaps["begin"] + sum(gaps["seconds"]) <= shown["seconds"] + 1e-3
    assert shown["largest"]["seconds"] <= shown["seconds"]


def overlap(some: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> bool:
    return any(one["begin"] < other["end"] and other["begin"] < one["end"] for one in some for other in others)


@pytest.fixture(scope="module")
def pair(small_pair: Served) -> Served:
    at_rest(small_pair)
    return small_pair


def test_chunks_are_computed_while_others_are_pulled(pair: Served) -> None:
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    reply = pair.request("POST", "/v1/completions", body | {"cache_salt": "waterfall"})
    usage = reply.json()["usage"]
    shown = waterfall(pair, str(reply.header("x-request-id")))
    check(shown)
    chunks, pulls = named(shown, "compute", "prefill:0"), named(shown, "pull", "decode:0")
    assert len(chunks) >= 4 and sum(span["tokens"] for span in chunks) == len(PROMPT) == usage["prompt_tokens"]
    assert pulls and sum(span["blocks"] for span in pulls) == -(-len(PROMPT) // 16)
    assert all(span["bytes"] > 0 for span in pulls)
    # While a chunk is pulled the next one is computed. Two workers' times may be apart by the journey of their reports.
    assert overlap(chunks, pulls)
    (handoff,) = named(shown, "handoff", "prefill:0")
    assert chunks[-1]["end"] <= handoff["begin"] <= handoff["end"]
    (decoded,) = named(shown, "decode", "decode:0")
    assert decoded["begin"] >= pulls[-1]["end"] and usage["completion_tokens"] == shown["completion_tokens"] == 12
    # The first token comes from the prefill worker, and decode repeats it with its own first one.
    assert 0 < sum(shown["gaps"]["steps"]) < 12 and shown["workers"] == ["prefill:0", "decode:0"]
    assert len(named(shown, "receive", "proxy")) == len(named(shown, "write", "proxy")) == 1
    names = {(event["name"], event["process"]) for event in shown["events"]}
    assert {("begin", "prefill:0"), ("begin", "decode:0"), ("first_token", "proxy"), ("finished", "proxy")} <= names


def killed_in_mid_stream(pair: Served, salt: str) -> dict[str, Any] | None:
    """Kill the decode worker under a stream; return its waterfall, or None where the answer had ended before."""
    victim = pair.living("decode:0")
    body = {"model": MODEL, "prompt": PROMPT[:300], "max_tokens": 200, "temperature": 0, "ignore_eos": True}
    reply = pair.request("POST", "/v1/completions", body | {"stream": True, "cache_salt": salt})
    events = reply.events()
    next(events)
    victim.kill()
    assert list(events)[-1] == "[DONE]"
    pair.living("decode:0", after=victim.pid)
    shown = waterfall(pair, str(reply.header("x-request-id")))
    return shown if shown["attempts"] > 1 else None


def test_a_killed_worker_shows_as_two_attempts(pair: Served) -> None:
    tries = (killed_in_mid_stream(pair, f"killed {number}") for number in range(4) if at_rest(pair))
    shown = next(found for found in tries if found is not None)
    check(shown)
    first, second = named(shown, "attempt", "proxy")
    assert (first["attempt"], second["attempt"], shown["attempts"]) == (0, 1, 2)
    assert first["end"] <= second["begin"] and shown["completion_tokens"] == 200
    (failover,) = (event for event in shown["events"] if event["name"] == "failover")
    assert failover["at"] == first["end"] and "decode:0" in failover["reason"]
    # The longest gap is that of the failover, and is not lost among the others.
    assert max(shown["gaps"]["largest"]) >= second["begin"] - first["end"]
    at_rest(pair)
