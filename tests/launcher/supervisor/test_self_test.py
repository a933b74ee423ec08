# SPDX-License-Identifier: Apache-2.0
"""Announcement of a launch once its proxy reports that every pair works, over scripted children."""

from collections.abc import Callable
from typing import Any

from pontil.launcher.supervisor.announcement import SelfTestMonitor

Launched = Callable[..., Any]
WaitUntil = Callable[[Callable[[], object]], None]
PAIR = {"proxy": ["ready", "listen"], "prefill:0": ["ready"], "decode:0": ["ready"]}
MOVED = [{"route": "prefill:0>decode:0", "bytes": 3_000_000, "seconds": 0.001}]
FAILED = [{"route": "prefill:0>decode:0", "bytes": 0, "error": "no KV block moved from prefill:0 to decode:0"}]


def asked(launch: Any) -> list[int]:
    return [command["number"] for command in launch.commands() if command["kind"] == "self_test"]


def test_it_is_announced_with_what_was_measured(launched: Launched) -> None:  # G2
    launch = launched(PAIR, routes={"1": MOVED})
    launch.until(r"prefill:0>decode:0 +3\.0 MB +3\.00")
    launch.until("ready on http://here after")
    assert asked(launch) == [1]


def test_a_pair_of_which_nothing_moves_ends_the_launch(launched: Launched) -> None:  # G2
    launch = launched(PAIR, routes={"1": FAILED})
    assert launch.end() == 1
    assert "ready on" not in launch.console and "Traceback" not in launch.console
    assert launch.console.splitlines()[-1].endswith(
        "The self-test failed: no KV block moved from prefill:0 to decode:0. Mend that, or start with --no-self-test."
    )


def test_what_was_tested_is_what_is_announced(launched: Launched, waiting: WaitUntil) -> None:
    """A worker that exits meanwhile is restarted, and the pairs are tested again."""
    launch = launched(PAIR, routes={"2": MOVED})
    waiting(lambda: asked(launch) == [1])
    launch.children()["decode:0"].kill()
    launch.until("decode:0 was killed by SIGKILL; starting it again")
    launch.until("ready on http://here after")
    assert asked(launch) == [1, 2]


def test_a_new_proxy_is_asked_and_nobody_waits_for_its_answer(launched: Launched, waiting: WaitUntil) -> None:
    launch = launched(PAIR, routes={"1": MOVED})
    launch.until("ready on")
    launch.children()["proxy"].kill()
    launch.until(r"proxy \| ready")
    waiting(lambda: asked(launch) == [1, 1])
    launch.process.terminate()
    assert launch.end() == 0 and launch.console.count("ready on http") == 1


def test_what_counts_is_the_first_fault_and_an_answer_that_does_not_come() -> None:  # C14
    test = SelfTestMonitor(wanted=True)
    assert test.complaint([], 0.0, 9.0) is test.complaint(MOVED, 0.0, 9.0) is None
    assert "prefill:0 to decode:0" in str(test.complaint(MOVED + FAILED, 0.0, 9.0))
    test.asked_at = 1.0
    assert test.complaint(None, 9.0, 9.0) is None
    assert "was not over after 9 s" in str(test.complaint(None, 11.0, 9.0))
