# SPDX-License-Identifier: Apache-2.0
"""A worker of several ranks under a real supervisor: processes whose bodies follow a script (scripted_child.py)."""

import signal
from collections.abc import Callable, Iterable
from typing import Any

import psutil
import pytest

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


@pytest.mark.parametrize("killed", RANKS)
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
