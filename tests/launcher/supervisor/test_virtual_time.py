# SPDX-License-Identifier: Apache-2.0
"""The supervisor over processes that exist only here, in a time that passes only where it would wait."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from virtual_supervisor import VirtualSelector, VirtualSite

from pontil.launcher.child.child_state import ChildState
from pontil.launcher.child.reports import ReadyReport


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualSite]:
    selector = VirtualSelector()
    monkeypatch.setattr(time, "monotonic", lambda: selector.now)
    made = VirtualSite(tmp_path, selector)
    yield made
    made.supervisor.cleanup()


def test_a_worker_that_dies_is_started_again_after_the_delay(site: VirtualSite) -> None:
    site.supervisor.start(site.plans)
    for process in site.made:
        process.report(ReadyReport({}))
    site.turns(1.0)
    worker = site.supervisor.children[1]
    assert site.states == [ChildState.READY, ChildState.READY]
    site.made[1].end(3)
    site.turns(3.0)
    assert site.states == [ChildState.READY, ChildState.BACKOFF] and len(site.made) == 2 and worker.exits[-1].code == 3
    site.turns(2.0)
    assert site.states == [ChildState.READY, ChildState.STARTING] and worker.pid == site.made[2].pid
    assert "starting it again in 4.0 s" in site.said.getvalue()


def test_a_worker_that_falls_silent_is_replaced_within_its_limits(site: VirtualSite) -> None:
    site.supervisor.start(site.plans)
    for process in site.made:
        process.report(ReadyReport({}))
    site.turns(1.0)
    site.made[1].is_silent = True
    limits = site.supervisor.orders.limits
    site.turns(limits.silence / 2)
    assert site.made[1].code is None
    site.turns(limits.silence * 4)
    assert site.made[1].code == -signal.SIGKILL and "no heartbeat" in site.said.getvalue()
    assert [child.starts for child in site.supervisor.children] == [1, 2]
