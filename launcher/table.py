# SPDX-License-Identifier: Apache-2.0
"""The supervisor's table as the proxies are told it: a row for each child, with what is known and nothing else."""

import math
from collections.abc import Sequence
from typing import Any

from pontil.launcher.child import Child
from pontil.launcher.child_state import ChildState
from pontil.launcher.death import Death
from pontil.launcher.gauges import Gauges, Usage
from pontil.launcher.gpu_memory import GpuMemory

# A line of a dead child's output is shown no longer than this: the table goes to the proxy once a second.
LINE_CHARACTERS = 300


class Table:
    """States as they are now, figures as of the last look at the gauges. `gpu_tool` tells of memory on GPUs."""

    def __init__(self, gpu_tool: str | None) -> None:
        self.gauges = Gauges(GpuMemory(gpu_tool) if gpu_tool else None)

    def rows(self, children: Sequence[Child], now: float) -> list[dict[str, Any]]:
        self.gauges.look([child.pid for child in children if child.pid], now)
        usages = self.gauges.usages
        return [row_of(child, usages.get(child.pid) if child.pid else None, now) for child in children]

    def close(self) -> None:
        self.gauges.close()


def row_of(child: Child, usage: Usage | None, now: float) -> dict[str, Any]:
    """JSON values. Times are in whole seconds, so that a row changes at most once in each."""
    row = {**child.row, "restarts": max(0, child.lives - 1)}
    if child.life is not None:
        row["uptime_seconds"] = int(now - child.life.signs.started_at)
        if child.life.start_seconds is not None:
            row["start_seconds"] = round(child.life.start_seconds, 2)
    if usage is not None and child.life is not None:
        row |= {"rss_bytes": usage.rss_bytes, "cpu_percent": usage.cpu_percent}
        if usage.gpu_bytes is not None:
            row["gpu_bytes"] = usage.gpu_bytes
    if child.state is ChildState.BACKOFF:
        row["starts_in_seconds"] = max(0, math.ceil(child.due - now))
    if child.reason is not None:
        row["reason"] = child.reason
    if child.deaths:
        row["last_death"] = told(child.deaths[-1], now)
    return row


def told(death: Death, now: float) -> dict[str, Any]:
    return {
        "cause": death.cause.value,
        "reason": death.describe(),
        "seconds_ago": int(now - death.at),
        "lines": [line[:LINE_CHARACTERS] for line in death.lines],
    }
