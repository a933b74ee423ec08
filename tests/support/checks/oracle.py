# SPDX-License-Identifier: Apache-2.0
"""Invariants after any fault: nothing is left of it, and healthy processes were not restarted."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
from books import differing
from process_state import has_ended
from served import Served, wait_for

T = TypeVar("T")
TWO_HEARTBEATS = 1.1
WORKERS = ("prefill", "decode", "mixed")


@dataclass(frozen=True)
class Process:
    """Resources of one process. `mapped` counts the pools it has mapped, its own included."""

    pid: int
    threads: int
    descriptors: int
    mapped: int


@dataclass(frozen=True)
class Rest:
    """An idle system."""

    processes: dict[str, Process]
    free_blocks: dict[str, int]


def busy(row: dict[str, Any]) -> bool:
    """Return whether the last heartbeat reported work; it lags by up to half a second."""
    load = row.get("load", {"running": 0, "waiting": 0} if row["role"] == "proxy" else {"running": 1})
    return bool(load["running"] or load["waiting"] or load.get("in_flight"))


def at_rest(served: Served) -> Rest:
    """Wait until every process lives and is ready, and nothing runs; return the state."""
    wait_for(served.is_ready, 60, "readiness")
    wait_for(lambda: served.metric("pontil_num_requests_running") == 0, 60, "an idle server")

    def resting() -> dict[str, dict[str, Any]] | None:
        rows = served.topology()
        is_whole = all(row["state"] == "READY" and not has_ended(row["pid"]) for row in rows.values())
        return rows if is_whole and not any(map(busy, rows.values())) else None

    rows = wait_for(resting, 120, "everyone ready, with heartbeats that tell of idle workers")
    free = {name: row["load"]["free_blocks"] for name, row in rows.items() if row["role"] in WORKERS}
    return Rest({name: process(row["pid"]) for name, row in rows.items()}, free)


def settled(served: Served) -> Rest:
    """Wait until free blocks no longer change. A heartbeat without work may still count blocks that a peer has just
    read, for example those of the launch's self-test."""
    steady(lambda: at_rest(served).free_blocks, "free blocks that stay the same")
    return at_rest(served)


def steady(look: Callable[[], T], what: str) -> T:
    """Return a value once every sample over two heartbeats has been the same."""
    found, since = look(), time.monotonic()

    def unchanged() -> bool:
        nonlocal found, since
        now = look()
        if now != found:
            found, since = now, time.monotonic()
        return time.monotonic() - since > TWO_HEARTBEATS

    wait_for(unchanged, 120, what)
    return found


def process(pid: int) -> Process:
    seen = psutil.Process(pid)
    mapped = sum("memfd:" in line for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    return Process(pid, seen.num_threads(), seen.num_fds(), mapped)


def check(served: Served, before: Rest, *killed: str) -> Rest:
    """Compare with the state before the fault. A healthy worker's resources may shrink, never grow."""
    for name in killed:
        served.living(name, after=before.processes[name].pid)
    wait_for(lambda: at_rest(served).free_blocks == before.free_blocks, 60, "free blocks as before")
    after = at_rest(served)
    assert set(after.processes) == set(before.processes)
    for name, then in before.processes.items():
        is_same = after.processes[name].pid == then.pid
        assert is_same is (name not in killed), f"{name} was restarted, or was not replaced"
    assert served.metric("pontil_ledger_imbalance") == 0
    ledger = served.get("/admin/ledger")
    assert ledger["open"] == 0 and ledger["imbalance"] == 0
    # The workers' own rows are written at the next checkpoint.
    wait_for(lambda: not differing(served.usage_log, ledger), 60, "a usage log that agrees with the ledger")
    return after


# Margin for connections that clients are just closing: smaller than the number of faults between two rests.
CLOSING = 2


def check_growth(before: Rest, after: Rest, healthy: set[str]) -> None:
    """Compare two rests with at least three faults of the same kind between them, so that a leak per fault exceeds the
    margin."""
    for name in healthy:
        then, now = before.processes[name], after.processes[name]
        assert now.threads <= then.threads and now.mapped <= then.mapped, (then, now)
        assert now.descriptors <= then.descriptors + CLOSING, (then, now)
