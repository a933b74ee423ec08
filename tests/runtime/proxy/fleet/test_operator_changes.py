# SPDX-License-Identifier: Apache-2.0
"""Changes that an operator asks the proxy for: refused here, or passed on and heard of again."""

import asyncio
from typing import Any

import pytest

from pontil.runtime.errors import RequestError, Unavailable
from pontil.runtime.proxy.fleet import operator_changes
from pontil.runtime.proxy.fleet.operator_changes import KEPT, MOST_OPEN, OperatorChanges
from pontil.runtime.proxy.fleet.registry import Registry


class OperatorSite:
    """A proxy's changes, with its supervisor played by the test."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[tuple[int, dict[str, Any]]] = []
        registry = Registry(15.0)
        rows = [("proxy", "proxy"), ("prefill:0", "prefill"), ("decode:0", "decode")]
        registry.show([{"name": n, "role": r, "pid": 1, "state": "ready", "device": "cpu"} for n, r in rows])
        self.changes = OperatorChanges(registry, lambda: self.now)
        self.changes.table_at = -0.5
        self.changes.ask = lambda number, request: self.asked.append((number, request))


@pytest.fixture
def site() -> OperatorSite:
    return OperatorSite()


def test_a_request_has_what_the_supervisor_needs_and_no_more(site: OperatorSite) -> None:
    site.changes.begin("drain", "decode:0")
    site.changes.begin("role", "decode:0", "mixed")
    assert site.asked == [
        (1, {"command": "drain", "names": ["decode:0"]}),
        (2, {"command": "role", "names": ["decode:0"], "role": "mixed"}),
    ]


@pytest.mark.parametrize(
    ("action", "worker", "role", "status", "says"),
    [
        ("scale", "decode:0", None, 404, "no worker can be told to scale"),
        ("drain", "decode:1", None, 404, "this launch has prefill:0, decode:0"),
        ("restart", "proxy", None, 409, "is a proxy"),
        ("role", "decode:0", None, 400, "role must be one of prefill, decode, mixed"),
        ("drain", "decode:0", "mixed", 400, "drain takes no role"),
        ("role", "decode:0", "proxy", 400, "role must be one of"),
        ("drain", "<img src=x>\n", None, 404, "'<img src=x>\\n'"),
    ],
)
def test_what_can_never_be_is_refused_here(
    site: OperatorSite, action: str, worker: str, role: str | None, status: int, says: str
) -> None:
    with pytest.raises(RequestError) as refused:
        site.changes.begin(action, worker, role)
    assert refused.value.status == status and says in str(refused.value) and not site.asked


def test_without_a_supervisor_nothing_is_asked(site: OperatorSite) -> None:
    site.changes.ask = None
    with pytest.raises(Unavailable, match="no launcher"):
        site.changes.begin("drain", "decode:0")


def test_a_silent_supervisor_is_not_asked(site: OperatorSite) -> None:
    site.changes.table_at = site.now - 10.0
    with pytest.raises(Unavailable, match="silent for 10 s"):
        site.changes.begin("drain", "decode:0")
    assert not site.asked


def test_few_changes_wait_and_few_are_kept(site: OperatorSite) -> None:
    for _ in range(MOST_OPEN):
        site.changes.begin("drain", "decode:0")
    with pytest.raises(Unavailable, match="other changes wait"):
        site.changes.begin("drain", "decode:0")
    for number in range(1, 30):
        site.changes.hear({"number": number, "end": "done", "code": 0})
        site.changes.begin("drain", "decode:0")
    assert len(site.changes.rows()) == KEPT and site.changes.rows()[0]["number"] == MOST_OPEN + 29


def test_a_change_that_is_under_way_is_kept_whatever_others_ask_for(site: OperatorSite) -> None:
    """Each of the others is refused by the supervisor at once, since one is under way."""
    first = site.changes.begin("restart", "decode:0")
    for number in range(2, 2 + 2 * KEPT):
        site.changes.begin("drain", "prefill:0")
        site.changes.hear({"number": number, "end": "Another change is under way.", "code": 1})
    assert len(site.changes.rows()) == KEPT
    site.changes.hear({"number": 1, "end": "done", "code": 0})
    assert first.outcome == "done" and not first.failed


def test_changes_whose_clients_and_supervisor_are_gone_leave_room_for_others(site: OperatorSite) -> None:
    for _ in range(MOST_OPEN):
        site.changes.begin("drain", "decode:0")
    site.now = operator_changes.SILENCE
    assert all(row["failed"] and "has not answered" in row["outcome"] for row in site.changes.rows())
    site.now += operator_changes.SILENCE
    site.changes.hear_table()
    site.changes.begin("drain", "decode:0")
    assert len(site.asked) == MOST_OPEN + 1


def test_lines_and_the_end_are_shown_and_bounded(site: OperatorSite) -> None:
    change = site.changes.begin("drain", "decode:0")
    for _ in range(100):
        site.changes.hear({"number": 1, "say": "x" * 1000})
    site.changes.hear({"number": 7, "say": "another proxy's"})
    site.changes.hear({"number": 1, "end": "It cannot be.", "code": 1})
    site.changes.hear({"number": 1, "end": "done", "code": 0})
    assert change.failed and change.outcome == "It cannot be." and change.over.is_set()
    assert len(change.lines) == operator_changes.KEPT_LINES and len(change.lines[0]) == 300


def test_a_supervisor_that_falls_silent_ends_the_wait(site: OperatorSite) -> None:
    change = site.changes.begin("drain", "decode:0")
    site.now = 15.0
    site.changes.hear({"number": 1})
    site.now = 15.0 + operator_changes.SILENCE + 0.1
    told = asyncio.run(asyncio.wait_for(site.changes.outcome(change), 10))
    assert told.failed and "has not answered" in str(told.outcome)
