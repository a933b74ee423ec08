# SPDX-License-Identifier: Apache-2.0
"""Models that sleep and wake, in a supervisor over processes that exist only here."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from virtual_supervisor import PuppetProcess, VirtualSelector, VirtualSite

from pontil.launcher.child.child import Child
from pontil.launcher.child.child_state import ChildState
from pontil.launcher.child.reports import OrderReport, ReadyReport, UseReport
from pontil.launcher.supervisor.rollouts.runner import place_of

READY, ASLEEP, STARTING = ChildState.READY, ChildState.ASLEEP, ChildState.STARTING


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualSite]:
    """A proxy and two models of which one fits the memory, after the start."""
    selector = VirtualSelector()
    monkeypatch.setattr(time, "monotonic", lambda: selector.now)
    made = VirtualSite(tmp_path, selector, ["large"], memory=10)
    made.supervisor.recovery.models.sizes = {"": [6, 0], "large": [7, 0]}
    made.supervisor.start(made.plans)
    serve(made)
    yield made
    made.supervisor.cleanup()


def process_of(site: VirtualSite, child: Child) -> PuppetProcess:
    return next(process for process in site.made if process.pid == child.pid)


def serve(site: VirtualSite) -> None:
    """Have all that are starting serve."""
    for child in site.supervisor.children:
        if child.state is STARTING:
            process_of(site, child).report(ReadyReport({}))
    site.turns(1.0)


def use(site: VirtualSite, small: list[int], large: list[int]) -> None:
    process_of(site, site.supervisor.children[0]).report(UseReport({"": small, "large": large}))
    site.turns(1.0)


def end_drained(site: VirtualSite, child: Child) -> None:
    """Have a worker report that its last requests have ended, and end when it is told to."""
    process = process_of(site, child)
    process.report(OrderReport(child.order, True))
    site.turns(1.0)
    assert child.state is ChildState.DRAINING
    process.end(0)
    site.turns(1.0)


def test_what_does_not_fit_sleeps_until_it_is_asked_for(site: VirtualSite) -> None:
    _, small, large = site.supervisor.children
    assert site.states == [READY, READY, ASLEEP] and site.supervisor.announcement.made and large.row["pid"] is None
    use(site, [3, 0, 0], [1, 1, 1])
    assert (small.state, small.sleeps, small.drain, large.state) == (READY, True, 3600.0, ASLEEP)
    end_drained(site, small)
    assert site.states == [READY, ASLEEP, STARTING] and "small" not in site.said.getvalue()
    serve(site)
    use(site, [3, 0, 0], [1, 1, 0])
    assert site.states == [READY, ASLEEP, READY] and small.drain is not None
    use(site, [4, 1, 1], [1, 0, 0])
    end_drained(site, large)
    serve(site)
    assert site.states == [READY, READY, ASLEEP] and (small.starts, len(small.exits)) == (1, 0)
    assert small.drain is None


def test_one_that_is_asked_for_again_stays(site: VirtualSite) -> None:
    _, small, _ = site.supervisor.children
    use(site, [3, 1, 0], [1, 1, 1])
    assert not small.sleeps, "it has requests, and its turn has just begun"
    site.turns(12.0)
    assert small.sleeps
    use(site, [4, 2, 1], [1, 0, 0])
    assert (small.state, small.sleeps, small.drain) == (READY, False, None)


def test_a_death_on_the_way_to_sleep_is_sleep(site: VirtualSite) -> None:
    _, small, large = site.supervisor.children
    use(site, [3, 0, 0], [1, 1, 1])
    process_of(site, small).end(-11)
    site.turns(1.0)
    assert site.states == [READY, ASLEEP, STARTING]
    process_of(site, large).end(3)
    site.turns(1.0)
    assert site.states[2] is ChildState.BACKOFF, "a death while it is needed is one as ever"


def test_no_change_waits_for_one_that_sleeps(site: VirtualSite) -> None:
    counted = {child.name: place_of(child).counts for child in site.supervisor.children}
    assert counted == {"proxy": True, "mixed:0": True, "large-mixed:0": False}


class ScaleClient:
    """The one that asked for a change, and what it was told."""

    verdict: str | None = None

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.code: int | None = None

    def say(self, text: str) -> None:
        self.lines.append(text)

    def end(self, text: str, code: int = 0, **facts: object) -> None:
        self.lines.append(text)
        self.code = code

    def beat(self) -> None:
        return

    def ask(self, workers: Sequence[str]) -> None:
        raise AssertionError("no change here is gated")


def scale(site: VirtualSite, memory: int, **counts: int) -> ScaleClient:
    """Ask for so many workers of models in so much memory."""
    site.supervisor.monitors, asked = True, ScaleClient()
    site.supervisor.recovery.models.memory = memory
    site.supervisor.rollouts.take(asked, {"command": "scale", "counts": counts})
    site.turns(1.0)
    return asked


def test_a_worker_is_added_once_other_models_have_left(site: VirtualSite) -> None:
    _, small, large = site.supervisor.children
    use(site, [3, 0, 0], [1, 1, 1])
    end_drained(site, small)
    serve(site)
    use(site, [3, 0, 0], [1, 0, 0])
    site.supervisor.recovery.models.memory = 14
    use(site, [4, 1, 1], [1, 0, 0])
    serve(site)
    use(site, [4, 1, 0], [1, 0, 0])
    assert site.states == [READY, READY, READY], "13 of 14"
    asked = scale(site, 14, large=2)
    assert site.states == [READY, READY, READY, ASLEEP] and asked.code is None and not small.sleeps
    assert asked.lines == ["large-mixed:1 is starting", "large-mixed:1 waits until other models have left"]
    site.turns(12.0)
    assert small.sleeps, "it has had its turn"
    end_drained(site, small)
    assert site.states == [READY, ASLEEP, READY, STARTING]
    serve(site)
    assert site.states == [READY, ASLEEP, READY, READY] and (asked.code, asked.lines[-1]) == (0, "done")
    use(site, [5, 1, 1], [1, 0, 0])
    assert large.sleeps and site.supervisor.children[3].sleeps, "they leave together"


def test_a_worker_of_a_model_that_sleeps_comes_with_it(site: VirtualSite) -> None:
    asked = scale(site, 14, large=2)
    assert site.states == [READY, READY, ASLEEP, ASLEEP] and asked.code == 0
    assert asked.lines == ["large-mixed:1 is starting", "large-mixed:1 sleeps, as its model does", "done"]
    use(site, [3, 0, 0], [1, 1, 1])
    end_drained(site, site.supervisor.children[1])
    assert site.states == [READY, ASLEEP, STARTING, STARTING]


def test_a_worker_that_never_fits_is_refused(site: VirtualSite) -> None:
    asked = scale(site, 13, large=2)
    assert asked.code == 1 and asked.lines[-1].startswith("There is no room for large-mixed:1 in --model-memory")
    assert site.states == [READY, READY, ASLEEP]


def test_reports_that_nobody_means_are_taken_for_none(site: VirtualSite) -> None:
    process_of(site, site.supervisor.children[0]).report(UseReport({"large": [1, 2], "": "no"}))  # type: ignore[dict-item]
    site.turns(1.0)
    assert site.states == [READY, READY, ASLEEP]
