# SPDX-License-Identifier: Apache-2.0
"""Changes that a proxy's page asks for, carried out by a real supervisor."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pontil.launcher.child.process import ChildProcess
from pontil.launcher.child.reports import ChangeReport
from pontil.launcher.child.starter import ExecStarter
from pontil.launcher.plan.child_plan import ChildPlan
from pontil.launcher.supervisor.page_changes import MOST_UNREAD, REFUSAL, is_allowed, take_change

STARTER = ExecStarter((sys.executable, "-c", "import signal; signal.pause()"), lambda threads: os.environ)

WaitUntil = Callable[[Callable[[], object]], None]
OBEYS = ["ready", "obey"]
PAIR = {"proxy": ["ready", "ask when told", "listen"], "prefill:0": OBEYS, "decode:0": OBEYS}


class Page:
    """An operator at the page of a launch's proxy."""

    def __init__(self, launch: Any, waiting: WaitUntil) -> None:
        self.launch, self.waiting, self.number = launch, waiting, 0

    def ask(self, request: Any) -> list[dict[str, Any]]:
        """Return what the proxy is told about this change, up to its end."""
        self.number += 1
        path = Path(f"{self.launch.trace}.ask-{self.number}")
        # Written whole before it has the name that is looked for.
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(request))
        draft.rename(path)
        self.waiting(lambda: any("end" in told for told in self.told()))
        return self.told()

    def told(self) -> list[dict[str, Any]]:
        return [one for one in self.launch.commands() if one["kind"] == "change" and one["number"] == self.number]


@pytest.fixture
def page(launched: Callable[..., Any], waiting: WaitUntil) -> Page:
    launch = launched(PAIR)
    launch.until("ready on")
    return Page(launch, waiting)


def test_a_page_drains_and_brings_back_as_a_command_does(page: Page, waiting: WaitUntil) -> None:
    *said, end = page.ask({"command": "drain", "names": ["decode:0"]})
    assert (end["end"], end["code"]) == ("done", 0) and "decode:0 is drained" in said[-1]["say"]
    tables = [one["rows"] for one in page.launch.commands() if one["kind"] == "table"]
    assert any(rows[2]["state"] == "drained" for rows in tables)
    refused = page.ask({"command": "drain", "names": ["prefill:0"]})
    assert [one["code"] for one in refused] == [1] and "Nobody else would serve" in refused[0]["end"]
    assert page.ask({"command": "undrain", "names": ["decode:0"]})[-1]["code"] == 0
    assert page.ask({"command": "role", "names": ["decode:0"], "role": "mixed"})[-1]["code"] == 0
    assert page.ask({"command": "restart", "names": ["prefill:0"]})[-1]["end"] == "done"


def test_a_page_is_refused_what_only_a_command_may(page: Page) -> None:
    refused: tuple[Any, ...] = (
        {"command": "scale", "counts": {"decode": 0}},
        {"command": "restart", "proxies": True},
        {"command": "restart", "names": ["decode:0"], "force": True},
        {"command": "drain", "names": ["decode:0"], "drain_timeout": 0},
        {"command": "reload"},
        {"command": "describe"},
        {},
    )
    for request in refused:
        assert [(one["end"], one["code"]) for one in page.ask(request)] == [(REFUSAL, 2)], request
    (unknown,) = page.ask({"command": "drain", "names": ["decode:7"]})
    assert "There is no worker 'decode:7'" in unknown["end"]
    (role,) = page.ask({"command": "role", "names": ["decode:0"], "role": "proxy"})
    assert "one of" in role["end"] and role["code"] == 2


@pytest.fixture(params=["proxy", "decode"])
def mute(request: pytest.FixtureRequest) -> Iterator[ChildProcess]:
    """A process that reads no command."""
    plan = ChildPlan(request.param, request.param, "cpu", (), {})
    made = ChildProcess(plan, STARTER, 0.0)
    yield made
    made.kill()
    made.process.reap()
    made.close()


def test_one_that_asks_without_end_and_never_reads_fills_no_memory(mute: ChildProcess) -> None:
    for number in range(20_000):
        take_change(mute, ChangeReport(number, {"command": "scale"}), lambda client, request: None)
    # A pipe holds the rest, and the last answer may go beyond the limit.
    least = MOST_UNREAD if mute.plan.is_proxy else 0
    assert least <= len(mute.outbox) <= (MOST_UNREAD + 1000 if least else 0)


@pytest.mark.parametrize(
    ("request_", "allowed"),
    [
        ({"command": "drain", "names": ["a"]}, True),
        ({"command": "role", "names": ["a"], "role": "mixed"}, True),
        ({"command": "role", "names": ["a"]}, False),
        ({"command": "drain", "names": ["a", "b"]}, False),
        ({"command": "drain", "names": "a"}, False),
        ({"command": ["drain"], "names": ["a"]}, False),
        ({"names": ["a"]}, False),
        ({}, False),
    ],
)
def test_exactly_the_fields_of_a_command_are_allowed(request_: dict[str, Any], allowed: bool) -> None:
    assert is_allowed(request_) is allowed
