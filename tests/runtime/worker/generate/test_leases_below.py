# SPDX-License-Identifier: Apache-2.0
"""Leases at a real worker that its pool has no room for: kept in its tiers, through floods and kills, or refunded."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiers import wait_until_idle
from workers import PromptWorker, ScriptedProxy, WorkerAnswer, greedy, open_worker, prompt

from pontil.runtime.cache.leases.lease_book import LOST
from pontil.runtime.cache.tier import disk_tier
from pontil.runtime.wire.lease_messages import RELEASE, RESUME
from pontil.runtime.wire.messages import LeaseOrder, LeaseState
from pontil.runtime.worker.start import kv_tiers

# Four whole blocks and a part.
LONG = prompt(70)
# The pool has 15 blocks, and the longest request may need 13 of them.
SETTINGS: dict[str, Any] = {"kv_cache_memory": 128 << 10, "max_model_len": 200}
LEASE = {"id": "prefix-1", "owner": "ada", "seconds": 600, "tokens": len(LONG), "must": True}

Open = Callable[..., PromptWorker]


@pytest.fixture
def opened(proxy: ScriptedProxy, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Return what opens a worker for which every read is worth its time, and has it registered."""
    monkeypatch.setattr(kv_tiers, "seconds_of_token", lambda engine, tokens: 60.0)

    def open_it(**settings: Any) -> PromptWorker:
        made = open_worker(model, tmp_path, "mixed:0", "mixed", **SETTINGS | settings)
        proxy.admit(made)
        return made

    return open_it


def disk(folder: Path) -> dict[str, Any]:
    return {"kv_tier_disk": str(folder / "kv"), "kv_tier_disk_size": 4 << 20}


def ask(proxy: ScriptedProxy, worker: PromptWorker, name: str, tokens: list[int], **more: Any) -> WorkerAnswer:
    proxy.submit(worker, name, tokens, greedy(2, ignore_eos=True), salt="same", **more)
    (answer,) = proxy.finish(name)
    return answer


def flood(proxy: ScriptedProxy, worker: PromptWorker) -> None:
    """Compute prompts that fill the pool many times, and have all stored."""
    assert worker.machine.scheduler.tier.store is not None
    for number in range(20):
        name, first = f"flood {number} {len(proxy.answers)} {worker.incarnation}", 3 + len(proxy.answers) % 200
        ask(proxy, worker, name, [first, *prompt(109)])
    wait_until_idle(worker.machine.scheduler.tier.store)


def leased(proxy: ScriptedProxy, worker: PromptWorker) -> LeaseState:
    """Lease a prefix that the pool has room for in part, and wait until the rest is in a tier."""
    assert not ask(proxy, worker, "leased", LONG, lease=LEASE).failures
    pins = worker.leases.book.pins
    proxy.turn_until(lambda: len(pins.below) == 4 - pins.most_owned and not pins.moving)
    assert pins.most_owned < 4 and pins.excess == 0
    (state,) = proxy.leases
    assert (state.state, state.tokens) == ("held", 64)
    return state


def order(proxy: ScriptedProxy, worker: PromptWorker, action: str, **more: Any) -> None:
    assert proxy.server.send(LeaseOrder("proxy", worker.incarnation, "prefix-1", action, **more))


def until_states(proxy: ScriptedProxy, *states: str) -> None:
    proxy.turn_until(lambda: [one.state for one in proxy.leases] == list(states))


def found(proxy: ScriptedProxy, worker: PromptWorker, name: str) -> int:
    return ask(proxy, worker, name, LONG).frames[0].cached_tokens or 0


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_what_the_pool_has_no_room_for_is_kept_in_a_tier(
    proxy: ScriptedProxy, opened: Open, tmp_path: Path, kind: str
) -> None:
    worker = opened(**({"kv_tier_memory": 4 << 20} if kind == "memory" else disk(tmp_path)))
    before = worker.leases.gauges()
    leased(proxy, worker)
    flood(proxy, worker)
    assert found(proxy, worker, "again") >= 64
    gauges, block = worker.load().gauges or {}, before["lease_block_bytes"]
    assert gauges[f"kv_tier_{kind}_leased_blocks"] == 4 - worker.leases.book.pins.most_owned
    assert gauges["lease_free_bytes"] == before["lease_free_bytes"] - 4 * block
    assert gauges["lease_budget_bytes"] == before["lease_budget_bytes"] > 4 * block
    order(proxy, worker, RELEASE)
    until_states(proxy, "held", "released")
    proxy.turn_until(lambda: not (worker.load().gauges or {})[f"kv_tier_{kind}_leased_blocks"])
    worker.leases.book.check()


def test_a_disk_keeps_a_lease_when_the_memory_of_its_worker_is_lost(
    proxy: ScriptedProxy, opened: Open, tmp_path: Path
) -> None:
    """The longest request may need all of the pool, so that leases are on the disk alone."""
    settings = disk(tmp_path) | {"max_model_len": 240}
    worker = opened(**settings)
    assert worker.leases.book.pins.most_owned == 0
    state = leased(proxy, worker)
    flood(proxy, worker)
    proxy.workers.remove(worker)
    worker.close()
    again = opened(**settings)
    order(proxy, again, RESUME, seconds=600, owner="ada", keys=state.keys, age=5.0)
    until_states(proxy, "held", "held")
    pins = again.leases.book.pins
    proxy.turn_until(lambda: len(pins.below) == 4)
    flood(proxy, again)
    assert found(proxy, again, "again") >= 64


def test_a_lease_is_refunded_when_its_disk_is_full(
    proxy: ScriptedProxy, opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = opened(**disk(tmp_path))
    leased(proxy, worker)
    flood(proxy, worker)

    def full(file: int, data: bytes, at: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk_tier, "write", full)
    flood(proxy, worker)
    until_states(proxy, "held", "refunded")
    assert proxy.leases[-1].reason == LOST
    assert not ask(proxy, worker, "after", LONG).failures
    refused = ask(proxy, worker, "more", LONG, lease=LEASE | {"id": "prefix-2"})
    assert "and leases may hold" in refused.failures[0].reason and refused.failures[0].status == 429
