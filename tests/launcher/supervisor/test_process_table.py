# SPDX-License-Identifier: Apache-2.0
"""The rows of workers of several ranks in the table that proxies get."""

from collections.abc import Sequence
from typing import Any

from pontil.launcher.child.child import Child
from pontil.launcher.child.starter import ExecStarter
from pontil.launcher.host.devices import Placement
from pontil.launcher.plan.child_plan import plan_ranks
from pontil.launcher.supervisor.process_table import rows_of


def rows(ended: Sequence[tuple[int, ...]], **config: Any) -> list[dict[str, Any]]:
    places = [Placement("cpu", (0,)), Placement("cpu", (1, 2))]
    plan = plan_ranks("decode:0", "decode", places, config, "ipc:///nowhere/ranks")
    child = Child(plan, ExecStarter((), lambda threads: {}))
    child.ended_pids.extend(ended)
    return rows_of(child, {}, 0.0)


def test_a_worker_of_several_ranks_has_one_row() -> None:
    (row,) = rows([(7,), (8,)])
    assert row["ended_pids"] == [7, 8]
    assert row["name"] == "decode:0" and row["cores"] == "0-2" and len(row["ranks"]) == 2


def test_data_parallel_ranks_have_a_row_each() -> None:
    """A proxy knows each as a worker, and which processes of it have ended."""
    first, second = rows([(7, 8), (17, 18)], data_parallel_size=2)
    assert (first["name"], second["name"]) == ("decode:0", "decode:0+1")
    assert (first["cores"], second["cores"]) == ("0", "1-2") and "ranks" not in first
    assert (first["ended_pids"], second["ended_pids"]) == ([7, 17], [8, 18])
    assert first["state"] == second["state"] and second["pid"] is None and second["role"] == "decode"
