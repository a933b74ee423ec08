# SPDX-License-Identifier: Apache-2.0
"""The supervisor's process table as sent to the proxies: a row for each child, with known values only."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pontil.launcher.child.child import Child
from pontil.launcher.child.child_state import ChildState
from pontil.launcher.child.exit_cause import ExitCause
from pontil.launcher.host.gpu_memory import GpuMemory
from pontil.launcher.host.resource_usage import ResourceSample, ResourceUsage
from pontil.runtime.foundation.number_ranges import spell

# Longest line of an exited child's output, in characters: the table goes to the proxy once a second.
LINE_CHARACTERS = 300
# Fields that a row has of all ranks together.
OF_RANKS = ("ranks", "cores", "rss_bytes", "cpu_percent", "gpu_bytes")


class ProcessTable:
    """Current states with the last resource samples. `gpu_tool` queries GPU memory."""

    def __init__(self, gpu_tool: str | None) -> None:
        self.resource_usage = ResourceUsage(GpuMemory(gpu_tool) if gpu_tool else None)

    def rows(self, children: Sequence[Child], now: float) -> list[dict[str, Any]]:
        self.resource_usage.look([process.process.pid for child in children for process in child.processes], now)
        return [row for child in children for row in rows_of(child, self.resource_usage.usages, now)]

    def tell(self, children: Sequence[Child], now: float) -> None:
        """Send each running proxy each new table once; one that does not read gets the newest when it does. Also send
        the commands queued for other children."""
        rows = self.rows(children, now)
        for child in children:
            for process in child.processes:
                process.flush()
            proxy = child.running if child.plan.is_proxy else None
            if proxy is not None and proxy.told != rows and not proxy.outbox:
                proxy.told = rows
                proxy.send({"kind": "table", "rows": rows})

    def close(self) -> None:
        self.resource_usage.close()


def row_of(child: Child, usages: Mapping[int, ResourceSample], now: float) -> dict[str, Any]:
    """Return a row of JSON values. Times are in whole seconds, so that a row changes at most once in each. The usage of
    a worker is that of all its ranks, of which each has its own too."""
    row = {**child.row, "restarts": max(0, child.starts - 1)}
    if cores := sorted({core for member in child.plan.members for core in member.cores}):
        row["cores"] = spell(cores)
    if child.running is not None:
        row["uptime_seconds"] = int(now - child.running.signs.started_at)
        if child.running.start_seconds is not None:
            row["start_seconds"] = round(child.running.start_seconds, 2)
    row |= usage_of([process.process.pid for process in child.processes], usages)
    for rank, member in zip(row.get("ranks", ()), child.plan.members, strict=False):
        rank |= usage_of([rank["pid"]], usages) | ({"cores": spell(member.cores)} if member.cores else {})
    if child.state is ChildState.BACKOFF:
        row["starts_in_seconds"] = max(0, math.ceil(child.due - now))
    if child.reason is not None:
        row["reason"] = child.reason
    if child.exits:
        row["last_death"] = told(child.exits[-1], now)
    if child.ended_pids:
        row["ended_pids"] = [first for first, *_ in child.ended_pids]
    return row


def rows_of(child: Child, usages: Mapping[int, ResourceSample], now: float) -> list[dict[str, Any]]:
    """Return a row for each worker that a child is: those of data-parallel ranks say what each has of its own."""
    row = row_of(child, usages, now)
    if not child.plan.is_data_parallel:
        return [row]
    ranks = [{name: value for name, value in rank.items() if name != "rank"} for rank in row["ranks"]]
    common = {name: value for name, value in row.items() if name not in OF_RANKS}
    rows = [{**rank, **common, "name": rank["name"], "pid": rank["pid"], "device": rank["device"]} for rank in ranks]
    if child.ended_pids:
        for one, ended in zip(rows, zip(*child.ended_pids, strict=True), strict=True):
            one["ended_pids"] = list(ended)
    return rows


def usage_of(pids: Sequence[int | None], usages: Mapping[int, ResourceSample]) -> dict[str, Any]:
    """Return the fields for what these processes use together, as far as it is known."""
    samples = [usages[pid] for pid in pids if pid is not None and pid in usages]
    if not samples:
        return {}
    on_gpus = [sample.gpu_bytes for sample in samples if sample.gpu_bytes is not None]
    total = {
        "rss_bytes": sum(sample.rss_bytes for sample in samples),
        "cpu_percent": sum(sample.cpu_percent for sample in samples),
    }
    return total | ({"gpu_bytes": sum(on_gpus)} if on_gpus else {})


def told(exit_cause: ExitCause, now: float) -> dict[str, Any]:
    return {
        "cause": exit_cause.cause.value,
        "reason": exit_cause.describe(),
        "seconds_ago": int(now - exit_cause.at),
        "lines": [line[:LINE_CHARACTERS] for line in exit_cause.lines],
    }
