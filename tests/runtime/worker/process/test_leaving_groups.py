# SPDX-License-Identifier: Apache-2.0
"""A worker whose group leaves in the middle of what it does."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pontil.runtime.errors import GroupLeaves
from pontil.runtime.worker.process.loop import WorkerLoop
from pontil.runtime.worker.process.workload import Outlook


def leave(*given: Any) -> None:
    raise GroupLeaves("a rank of this group leaves")


@pytest.mark.parametrize("busy", [True, False])
@pytest.mark.parametrize("where", ["work", "keep_up"])
def test_a_loop_stops_after_the_turn_in_which_others_leave(busy: bool, where: str) -> None:
    """In a step, in idle work, or between them."""
    quiet = SimpleNamespace(stepped=lambda number, working: None)
    work = leave if where == "work" else lambda now: None
    workload = SimpleNamespace(
        sockets=SimpleNamespace(),
        link=SimpleNamespace(congested=False),
        idle_work=SimpleNamespace(spend=work, end=lambda: None),
        step=work,
        keep_up=leave if where == "keep_up" else lambda: None,
        outlook=lambda: Outlook(busy, not busy, 0.0),
    )
    loop = WorkerLoop(cast(Any, workload), cast(Any, quiet))
    loop.compute(1.0)
    assert loop.stopping and loop.outlook.has_work == busy
