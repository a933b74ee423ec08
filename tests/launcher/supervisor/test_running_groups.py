# SPDX-License-Identifier: Apache-2.0
"""A worker of several ranks under a real supervisor: processes whose bodies follow a script (scripted_child.py)."""

import json
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest
from effort import by_default

from pontil.launcher.control.control_client import ask

Launched = Callable[..., Any]
WaitUntil = Callable[[Callable[[], object]], None]
Gone = Callable[[Iterable[psutil.Process]], None]
RANKS = ("decode:0", "decode:0+1", "decode:0+2")
GROUP = {
    "proxy": ["ready", "listen"],
    "prefill:0": ["ready", "obey"],
    "decode:0": [["ready", "obey"], ["ready"], ["ready"]],
}


def pids(launch: Any) -> dict[str, int]:
    return {name: child.pid for name, child in launch.children().items()}


def test_all_ranks_start_and_end_with_the_launch(launched: Launched, all_gone: Gone) -> None:
    launch = launched(GROUP)
    launch.until(r"decode:0\+2 \| ready")
    launch.until("ready on")
    family = launch.children()
    assert set(family) == {"proxy", "prefill:0", *RANKS}
    launch.process.kill()
    all_gone(list(family.values()))


@pytest.mark.parametrize("killed", by_default({"decode:0", "decode:0+2"}, RANKS))
def test_the_end_of_a_rank_is_that_of_its_worker(launched: Launched, killed: str) -> None:
    launch = launched(GROUP)
    launch.until("ready on")
    before = pids(launch)
    launch.children()[killed].kill()
    said = "was killed by SIGKILL" if killed == "decode:0" else rf"lost {killed.replace('+', '[+]')}, which was killed"
    launch.until(f"decode:0 {said}.*; starting it again")
    for _ in RANKS:
        launch.until(r"decode:0.* \| ready")
    after = pids(launch)
    assert {name for name in before if before[name] != after[name]} == set(RANKS)
    launch.process.send_signal(signal.SIGINT)
    assert launch.end() == 130
    assert launch.console.count("starting it again") == 1, "one end, one restart"


def test_a_rank_that_stops_is_killed_with_its_worker(launched: Launched) -> None:
    launch = launched(GROUP, limits={"silence": 1.0})
    launch.until("ready on")
    before = pids(launch)
    launch.children()["decode:0+2"].suspend()
    launch.until(r"decode:0\+2 sent no heartbeat for \d\.\d s: killing all ranks of decode:0")
    launch.until(r"decode:0 lost decode:0\+2, which was killed: it sent no heartbeat.*starting it again")
    for _ in RANKS:
        launch.until(r"decode:0.* \| ready")
    assert not {pids(launch)[name] for name in RANKS} & set(before.values())


def test_the_rank_that_cannot_start_says_why_and_not_those_that_lost_it(launched: Launched) -> None:
    launch = launched(GROUP | {"decode:0": [["lose a rank"], ["lose a rank"], ["be lost", "fail"]]})
    assert launch.end() == 1
    assert "decode:0+2 could not start: there is no such model" in launch.console
    assert "could not start: a rank is gone" not in launch.console and "starting it again" not in launch.console


def test_a_worker_is_ready_when_all_its_ranks_are(launched: Launched, waiting: WaitUntil) -> None:
    launch = launched(GROUP | {"decode:0": [["ready", "obey"], ["progress"], ["ready"]]})
    launch.until("half of the weights")
    waiting(launch.commands)
    waiting(lambda: [one["state"] for one in row(launch)["ranks"]] == ["ready", "starting", "ready"])
    # The table may be one from before the rank said so: the proxy writes down each at its own pace.
    waiting(lambda: "reason" in row(launch))
    shown = row(launch)
    assert shown["state"] == "starting" and shown["device"] == "cpu:0+cpu:0+cpu:0"
    assert shown["reason"] == "half of the weights"
    assert [one["pid"] for one in shown["ranks"]] == [launch.children()[name].pid for name in RANKS]
    waiting(lambda: all("rss_bytes" in one for one in row(launch)["ranks"]))
    shown = row(launch)
    assert shown["rss_bytes"] == sum(one["rss_bytes"] for one in shown["ranks"])


def row(launch: Any) -> dict[str, Any]:
    """Return the row of the worker in the last table that the proxy was sent."""
    found: dict[str, Any] = launch.commands()[-1]["rows"][2]
    return found


def test_only_the_driver_gets_orders_and_the_others_end_with_it(launched: Launched) -> None:
    launch = launched(GROUP | {"decode:0": [["ready", "obey"], ["deaf", "ready"], ["ready", "obey"]]})
    launch.until("ready on")
    before = pids(launch)
    said: list[str] = []
    folder = Path(launch.base) / str(launch.process.pid)
    assert ask(folder, {"command": "drain", "names": ["decode:0"]}, said.append).code == 0
    assert ask(folder, {"command": "restart", "names": ["decode:0"]}, said.append).code == 0
    after = pids(launch)
    assert {name for name in before if before[name] != after[name]} == set(RANKS)
    orders = [json.loads(line) for line in Path(f"{launch.trace}.orders").read_text().splitlines()]
    assert {order["name"] for order in orders} == {"decode:0"}
    launch.process.terminate()
    assert launch.end() == 0
    assert "starting it again" not in launch.console and "given up" not in launch.console


def test_a_worker_like_a_group_is_a_group(launched: Launched) -> None:
    """The launch may use two cores, of which one is free."""
    launch = launched(GROUP)
    launch.until("ready on")
    said: list[str] = []
    folder = Path(launch.base) / str(launch.process.pid)
    refused = ask(folder, {"command": "scale", "counts": {"decode": 2}}, said.append)
    assert refused.code == 1 and "No 3 devices are free for another decode worker" in refused.text


def test_ranks_of_a_worker_on_another_host_start_again_and_end_at_once(launched: Launched) -> None:
    """Their driver's end is no failure of theirs, and they have no requests that a stop would wait for."""
    launch = launched(
        {"decode:0": [["ready", "be lost"], ["ready"]], "prefill:0": [["lose a rank"], ["ready"]]}, node=1
    )
    launch.until(r"prefill:0\+2 failed: a rank is gone; starting it again")
    launch.process.send_signal(signal.SIGTERM)
    assert launch.end() == 0
    assert "stopping: waiting for requests" not in launch.console
