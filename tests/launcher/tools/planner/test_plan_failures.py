# SPDX-License-Identifier: Apache-2.0
"""Requests that would fail: why, and when a plan says so by its exit code."""

import json

import pytest
from plan_options import options
from recorded_profile import small_profile
from virtual_fork import in_virtual_time

from pontil.launcher.tools.planner.plan_command import fails, predict
from pontil.launcher.tools.planner.prediction import reasons_of

TOO_LONG = ("--mixed", "1", "--concurrency", "2", "--requests", "3", "--prompt-tokens", "9000", "--output-tokens", "4")


def planned(*words: str) -> int:
    return int(in_virtual_time(lambda: predict({"small": small_profile()}, options(*words))))


def test_requests_that_would_fail_say_why(capfd: pytest.CaptureFixture[str]) -> None:
    assert planned(*TOO_LONG) == 1
    said = capfd.readouterr()
    (line,) = said.err.splitlines()
    assert line.startswith("1 mixed, 2 streams: 3 failed: 9000 prompt tokens and 4 more exceed the context of ")
    assert "failed:" not in said.out
    assert planned(*TOO_LONG, "--json") == 1
    said = capfd.readouterr()
    row = json.loads(said.out)
    ((reason, count),) = row["failure_reasons"].items()
    assert reason in line and count == row["failures"] == 3 and not said.err
    assert planned(*TOO_LONG, "--prompt-tokens", "32", "--json") == 0
    assert "failure_reasons" not in json.loads(capfd.readouterr().out)


def test_reasons_that_differ_by_numbers_are_one() -> None:
    waits = [f"the wait is about {seconds} s: try again in {seconds - 30} s" for seconds in (37, 38, 37)]
    assert reasons_of([*waits, "no worker serves it"]) == {waits[0]: 3, "no worker serves it": 1}
    assert list(reasons_of(["a", "b", "b", "c", "d", "d"])) == ["b", "d", "a"]


def test_of_rates_that_were_tried_only_those_within_the_limits_count() -> None:
    tried = [{"request_rate": 1.0, "failures": 0}, {"request_rate": 4.0, "failures": 9}]
    assert fails(tried) and not fails(tried[:1])
    assert not fails([*tried, {"highest_request_rate": 2.0}])
    assert fails([{"request_rate": 1.5, "failures": 1}, *tried, {"highest_request_rate": 2.0}])
    # No rate keeps the limits.
    assert fails([*tried, {"highest_request_rate": None}])
    assert fails([{"load": "8 streams", "failures": 1}])
