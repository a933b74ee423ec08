# SPDX-License-Identifier: Apache-2.0
"""The launch at rest: what its processes hold while nothing runs, before the faults and after them."""

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.tools.bench.http_client import HttpClient
from pontil.launcher.tools.bench.stream_client import RequestFailed
from pontil.launcher.tools.chaos.launch_facts import LaunchFacts, facts_of

SHARED_MEMORY = Path("/dev/shm")
# Seconds between two looks; blocks must not change for longer than two heartbeats of a worker; and the longest wait.
LOOK_EVERY, STEADY_SECONDS, REST_WITHIN = 0.2, 1.2, 180.0
# The longest time in which no proxy may answer.
ANSWER_WITHIN = 30.0
# Metrics that show what a fault did, by the name of the figure, and a label that their series must have.
EFFECTS = {
    "failovers": ("pontil_failovers_total", ""),
    "failed_handoffs": ("pontil_handoffs_total", 'result="failed"'),
    "failed_writes": ("pontil_usage_log_failures", ""),
}
EffectCounts = Mapping[str, Mapping[str, float]]
# Metrics that must not grow, whatever fails: the product's own faults.
FAULTLESS = ("pontil_thread_failures_total", "pontil_counts_disputed_total", "pontil_usage_log_given_up")


@dataclass(frozen=True, slots=True)
class ProcessHoldings:
    """The resources of one process: descriptors, and bytes of memory that is its own and no KV pool."""

    descriptors: int
    own_bytes: int


@dataclass(frozen=True, slots=True)
class LaunchRest:
    """The launch at rest. `holdings` are by (child, pid), `used_blocks` of KV by worker; `ledger` is None where several
    proxies share the port; `segments` are the shared memory that no process of the host uses."""

    holdings: Mapping[tuple[str, int], ProcessHoldings]
    used_blocks: Mapping[str, int]
    ledger: Mapping[str, Any] | None
    faults: Mapping[str, float]
    imbalance: float
    segments: frozenset[str]
    zombies: tuple[str, ...] = ()


class RestWatch:
    """Looks at a launch over its supervisor and its server."""

    def __init__(self, folder: Path, client: HttpClient, pid: int) -> None:
        self.folder, self.client, self.pid = folder, client, pid

    async def get(self, path: str) -> bytes:
        """Return a page. A proxy that is disturbed meanwhile breaks a connection or is not there yet: another one is
        asked. Raises RequestFailed where none answers for long."""
        deadline = time.monotonic() + ANSWER_WITHIN
        while True:
            try:
                return await self.client.get(path)
            except RequestFailed:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(LOOK_EVERY)

    async def metrics(self) -> str:
        return (await self.get("/metrics")).decode(errors="replace")

    async def effects(self) -> EffectCounts:
        """Return the counts so far of what faults cause."""
        return effects_of(await self.metrics())

    async def processes(self) -> list[dict[str, Any]]:
        """Return the rows of /admin/topology."""
        rows: list[dict[str, Any]] = json.loads(await self.get("/admin/topology"))["processes"]
        return rows

    async def at_rest(self) -> LaunchRest:
        """Wait until every child is ready, nothing runs and the blocks in use no longer change. Raises LaunchError if
        that takes too long."""
        last_blocks, since, deadline = None, time.monotonic(), time.monotonic() + REST_WITHIN
        while time.monotonic() < deadline:
            facts, rows = await facts_of(self.folder), await self.processes()
            metrics = sums_of(await self.metrics())
            now = used_blocks_of(rows)
            idle = not metrics.get("pontil_num_requests_running") and not metrics.get("pontil_num_requests_waiting")
            whole = all(child.ready and not child.disturbed for child in facts.children)
            if now is None or not idle or not whole or now != last_blocks:
                last_blocks, since = now, time.monotonic()
            elif time.monotonic() - since > STEADY_SECONDS:
                return await self.rest(facts, rows, now, metrics)
            await asyncio.sleep(LOOK_EVERY)
        raise LaunchError(f"The launch was not idle and whole within {REST_WITHIN:.0f} s: `pontil status` shows why.")

    async def rest(
        self,
        facts: LaunchFacts,
        rows: Sequence[Mapping[str, Any]],
        used_blocks: Mapping[str, int],
        metrics: Mapping[str, float],
    ) -> LaunchRest:
        # The server's own table: the proxies may be children of another launch.
        proxies = sum(row["role"] == "proxy" for row in rows)
        ledger = json.loads(await self.get("/admin/ledger")) if proxies <= 1 else None
        pids = [(child.name, pid) for child in facts.children for pid in child.pids]
        faults = {name: metrics.get(name, 0.0) for name in FAULTLESS}
        return LaunchRest(
            {key: holding for key in pids if (holding := holdings(key[1])) is not None},
            used_blocks,
            ledger,
            faults,
            metrics.get("pontil_ledger_imbalance", 0.0),
            unused_segments(),
            tuple(zombies(self.pid)),
        )


def used_blocks_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, int] | None:
    """Return the KV blocks in use in each worker of /admin/topology, None while somebody works or is not ready."""
    loads = {row["name"]: row.get("load") for row in rows if row["role"] != "proxy"}
    busy = [load for load in loads.values() if load is None or load["running"] or load["waiting"]]
    if busy or any(row["state"] != "READY" for row in rows):
        return None
    return {name: load["total_blocks"] - load["free_blocks"] for name, load in loads.items() if load}


def sums_of(page: str) -> dict[str, float]:
    """Return the series of a page in Prometheus' text format, and under each bare name their sum."""
    sums: dict[str, float] = {}
    for line in page.splitlines():
        series, _, value = line.rpartition(" ")
        if series and not line.startswith("#"):
            for name in {series, series.partition("{")[0]}:
                sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def effects_of(page: str) -> dict[str, dict[str, float]]:
    """Return the series of what faults cause, by the name of the figure."""
    effect_series: dict[str, dict[str, float]] = {name: {} for name in EFFECTS}
    for line in page.splitlines():
        series, _, value = line.rpartition(" ")
        metric, _, labels = series.partition("{")
        for name, (effect_metric, label) in EFFECTS.items():
            if metric == effect_metric and label in labels:
                effect_series[name][series] = float(value)
    return effect_series


def grown(before: EffectCounts, after: EffectCounts) -> dict[str, int]:
    """Return by how much each figure grew: a proxy that started again counts from nothing."""
    sums = {}
    for name, series in after.items():
        old = {key: before[name].get(key, 0.0) for key in series}
        sums[name] = int(sum(count - (old[key] if count >= old[key] else 0.0) for key, count in series.items()))
    return sums


def holdings(pid: int) -> ProcessHoldings | None:
    """Return what a process holds, None if it has ended."""
    folder = Path(f"/proc/{pid}")
    try:
        lines = dict(line.partition(":")[::2] for line in (folder / "status").read_text().splitlines())
        return ProcessHoldings(len(os.listdir(folder / "fd")), int(lines["RssAnon"].split()[0]) << 10)
    except (OSError, KeyError, ValueError):
        return None


def unused_segments() -> frozenset[str]:
    """Return the names of this user's shared memory that no process has mapped: what is mapped belongs to somebody who
    lives, be it another launch or another program."""
    try:
        own_segments = {
            entry.name
            for entry in os.scandir(SHARED_MEMORY)
            if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid()
        }
    except OSError:
        return frozenset()
    # Only where there are any: reading the maps of all processes takes a while.
    unused_names = own_segments - mapped_segments() if own_segments else own_segments
    return frozenset(name for name in unused_names if (SHARED_MEMORY / name).exists())


def mapped_segments() -> set[str]:
    """Return the names of the shared memory that a process of this user has mapped."""
    segments, prefix = set(), f" {SHARED_MEMORY}/"
    for process in Path("/proc").glob("[0-9]*"):
        try:
            lines = (process / "maps").read_text().splitlines()
        except OSError:
            continue
        segments |= {line.partition(prefix)[2] for line in lines if prefix in line}
    return segments


def zombies(pid: int) -> list[str]:
    """Return the children of the launcher that have ended and that it has not reaped."""
    import psutil

    try:
        family = psutil.Process(pid).children(recursive=True)
        return [f"{process.pid}" for process in family if process.status() == psutil.STATUS_ZOMBIE]
    except psutil.Error:
        return []
