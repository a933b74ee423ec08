# SPDX-License-Identifier: Apache-2.0
"""The supervisor over real processes whose roles are scripted (scripted_child.py)."""

import json
import re
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest

Launched = Callable[..., Any]
WaitUntil = Callable[[Callable[[], object]], None]
Gone = Callable[[Iterable[psutil.Process]], None]
PAIR = {"proxy": ["ready", "listen"], "prefill:0": ["ready"], "decode:0": ["ready"]}


def test_it_starts_everything_and_ends_with_nothing_left(launched: Launched, all_gone: Gone) -> None:
    launch = launched(PAIR)
    launch.until("ready on http://here after")
    family = launch.children()
    assert set(family) == set(PAIR)
    launch.process.send_signal(signal.SIGINT)
    assert launch.end() == 130 and "Traceback" not in launch.console  # G4
    all_gone(list(family.values()))
    assert [path.name for path in launch.base.iterdir()] == [".lock"]


def test_nothing_but_descriptors_and_names_stands_in_argv(launched: Launched) -> None:
    launch = launched(PAIR)
    launch.until("ready on")
    line = launch.children()["decode:0"].cmdline()
    assert all(re.fullmatch(r"--(parent|config-fd|report-fd|commands-fd)=\d+", word) for word in line[3:])


def test_a_killed_child_is_started_again_alone(launched: Launched) -> None:
    launch = launched(PAIR)
    launch.until("ready on")
    before = launch.children()
    before["decode:0"].kill()
    launch.until("decode:0 was killed by SIGKILL; starting it again")
    launch.until(r"decode:0 \| ready")
    after = launch.children()
    assert {name for name in PAIR if before[name].pid != after[name].pid} == {"decode:0"}  # G3


def test_a_crash_loop_ends_in_giving_up_and_the_rest_goes_on(launched: Launched) -> None:
    launch = launched(
        PAIR | {"decode:0": ["crash after the first life", "ready"]},
        policy={"attempts": 2, "first_delay": 0.01},
    )
    launch.until("ready on")
    before = launch.children()
    before["decode:0"].kill()
    launch.until("decode:0 exited with code 3 and is given up")
    assert {name: child.pid for name, child in launch.children().items()} == {
        name: before[name].pid for name in ("proxy", "prefill:0")
    }
    launch.process.terminate()
    assert launch.end() == 0


def test_a_launch_whose_workers_all_keep_dying_ends_with_their_last_words(launched: Launched) -> None:
    launch = launched({"proxy": ["ready"], "mixed:0": ["crash"]}, policy={"attempts": 1, "first_delay": 0.01})
    assert launch.end() == 1
    assert launch.console.count("mixed:0 | about to crash") >= 3 and "Every worker is given up" in launch.console


def test_a_mistake_of_the_user_ends_the_launch_at_once(launched: Launched) -> None:
    launch = launched(PAIR | {"prefill:0": ["fail"]})
    assert launch.end() == 1
    assert "prefill:0 could not start: there is no such model" in launch.console
    assert "starting it again" not in launch.console and "Traceback" not in launch.console


def test_a_worker_unlike_the_others_ends_the_launch_as_a_mistake(launched: Launched) -> None:  # C8
    launch = launched(PAIR | {"prefill:0": ["refused"]})
    assert launch.end() == 2
    assert "prefill:0 could not start: the proxy refused this worker: another dtype" in launch.console
    assert "starting it again" not in launch.console and "Traceback" not in launch.console


@pytest.mark.parametrize(("others", "code"), [([], 2), (["prefill:0"], 0)])
def test_a_worker_refused_later_is_not_started_again(launched: Launched, others: list[str], code: int) -> None:
    """A new proxy refuses it, since other workers registered first. The workers that match go on serving."""
    launch = launched({"decode:0": ["ready", "refused"]} | {name: ["ready", "obey"] for name in others})
    launch.until("decode:0 failed: the proxy refused this worker: another dtype and is given up")
    if others:
        launch.process.terminate()
    assert launch.end() == code
    assert "starting it again" not in launch.console


def test_a_bug_in_a_child_shows_its_traceback(launched: Launched) -> None:
    launch = launched({"mixed:0": ["bug"]}, policy={"attempts": 0})
    assert launch.end() == 1
    assert "mixed:0 | ValueError: a bug" in launch.console and "exited with code 70" in launch.console


def test_no_child_is_started_when_the_model_is_not_found(launched: Launched) -> None:
    launch = launched(PAIR, prepare=["fail"])
    assert launch.end() == 1
    assert launch.console == "there is no such model"


def test_a_stopped_child_is_killed_and_replaced(launched: Launched) -> None:
    launch = launched(PAIR, limits={"silence": 1.0})
    launch.until("ready on")
    launch.children()["decode:0"].suspend()
    launch.until(r"decode:0 sent no heartbeat for 1\.\d s: killing it")
    launch.until(r"decode:0 \| ready")


def test_a_child_that_computes_is_not_taken_for_dead(launched: Launched, waiting: WaitUntil) -> None:
    """The child holds Python's lock for twice the allowed silence and sends no heartbeat; afterwards it is healthy."""
    script = ["ready", "hold the lock 3", "say so"]
    launch = launched({"proxy": ["ready", "listen"], "decode:0": script}, limits={"silence": 1.5})
    launch.until("ready on")
    first = launch.children()["decode:0"]
    waiting(lambda: launch.trace.with_name("trace.said").exists())
    assert launch.children()["decode:0"].pid == first.pid
    first.suspend()
    launch.until(r"decode:0 sent no heartbeat for \d+\.\d s: killing it")
    assert launch.console.count("killing it") == 1


def test_a_child_that_computes_for_ever_is_killed_in_the_end(launched: Launched) -> None:
    launch = launched(
        {"proxy": ["ready"], "mixed:0": ["ready", "hold the lock 1000"]}, limits={"silence": 1.0, "busy": 2.0}
    )
    launch.until(r"mixed:0 computed for \d+ s without a heartbeat \(--busy-timeout\): killing it")
    launch.until("starting it again")


def test_children_are_not_blamed_for_what_a_stopped_launcher_did_not_hear(
    launched: Launched, waiting: WaitUntil
) -> None:
    """Stop the launcher, as Ctrl-Z or a blocked terminal would."""
    launch = launched(PAIR, limits={"silence": 1.0})
    launch.until("ready on")
    before = {name: child.pid for name, child in launch.children().items()}
    launch.process.send_signal(signal.SIGSTOP)
    threading.Event().wait(3)
    launch.process.send_signal(signal.SIGCONT)
    told = len(launch.commands())
    waiting(lambda: len(launch.commands()) > told + 2)
    assert {name: child.pid for name, child in launch.children().items()} == before
    launch.process.send_signal(signal.SIGINT)
    launch.end()
    assert "killing it" not in launch.console


@pytest.mark.parametrize(
    ("script", "limits", "words"),
    [
        (["ready", "work without a step"], {"stuck_step": 0.5}, "made no step"),
        (["ready", "close the pipe"], {"closed_pipe": 0.1}, "closed its report pipe"),
    ],
)
def test_a_sick_child_is_replaced(launched: Launched, script: list[str], limits: dict[str, float], words: str) -> None:
    launch = launched({"proxy": ["ready"], "mixed:0": script}, limits=limits)
    launch.until(words)
    launch.until("starting it again")


def test_a_start_has_a_deadline_and_waiting_for_a_proxy_has_none(launched: Launched) -> None:
    script = ["wait for a proxy", "go on when told", "ready"]
    # Finding the model must be quicker than the deadline.
    ranks = [script, ["ready"]]
    launch = launched({"proxy": ["ready"], "prefill:0": ranks, "decode:0": []}, limits={"start": 4.0})
    launch.until("decode:0 was not ready after 4 s")
    Path(f"{launch.trace}.go").touch()
    launch.until(r"prefill:0 \| ready after")
    assert not re.search(r"prefill:0\S* was not ready", launch.console)


def test_the_proxy_is_told_each_change(launched: Launched, waiting: WaitUntil) -> None:
    launch = launched(PAIR)
    launch.until("ready on")
    waiting(launch.commands)  # the first table may still be on its way
    waiting(lambda: {row["state"] for row in launch.commands()[-1]["rows"]} == {"ready"})
    launch.children()["decode:0"].kill()
    launch.until(r"decode:0 \| ready")
    waiting(lambda: launch.commands()[-1]["rows"][2]["pid"] == launch.children()["decode:0"].pid)
    told = [command["rows"][2] for command in launch.commands()]
    assert told[-1]["state"] in ("starting", "ready") and "starts_in_seconds" not in told[-1]
    assert {row.get("starts_in_seconds") for row in told if row["state"] == "backoff"} <= {0, 1}
    assert "backoff" in {row["state"] for row in told}
    proxy, _, decode = launch.commands()[-1]["rows"]
    assert set(proxy) >= {"name", "role", "pid", "state", "device", "uptime_seconds", "start_seconds"}
    assert "last_death" not in proxy and proxy["restarts"] == 0
    assert decode["restarts"] == 1 and decode["last_death"]["reason"] == "was killed by SIGKILL"  # G3


def test_the_proxy_is_told_what_children_take(launched: Launched, waiting: WaitUntil) -> None:  # G3
    launch = launched(PAIR)
    launch.until("ready on")
    waiting(launch.commands)
    waiting(lambda: all("cpu_percent" in row for row in launch.commands()[-1]["rows"]))
    for row in launch.commands()[-1]["rows"]:
        assert row["rss_bytes"] > 1 << 20 and "gpu_bytes" not in row
    launch.children()["decode:0"].suspend()
    waiting(lambda: launch.commands()[-1]["rows"][2]["restarts"] == 1)
    killed = next(command["rows"][2] for command in launch.commands() if command["rows"][2].get("reason"))
    assert killed["state"] in ("killed", "exited", "backoff") and "sent no heartbeat for" in killed["reason"]


def test_the_table_tells_what_a_child_is_starting_with(launched: Launched, waiting: WaitUntil) -> None:  # G3
    launch = launched({"proxy": ["ready", "listen"], "mixed:0": ["progress"]})
    launch.until("half of the weights")
    waiting(launch.commands)
    waiting(lambda: launch.commands()[-1]["rows"][1].get("reason") == "half of the weights")
    assert launch.commands()[-1]["rows"][1]["state"] == "starting"


def test_a_new_proxy_is_told_where_things_stand(launched: Launched, waiting: WaitUntil) -> None:
    launch = launched(PAIR)
    launch.until("ready on")
    launch.children()["proxy"].kill()
    launch.until(r"proxy \| ready")
    pid = launch.children()["proxy"].pid
    # The last recorded table is the old proxy's until the new one has read its first.
    waiting(lambda: launch.commands() and launch.commands()[-1]["rows"][0]["pid"] == pid)
    waiting(lambda: launch.commands()[-1]["rows"][0]["state"] == "ready")


def test_sigterm_drains_the_proxy_before_the_workers_end(launched: Launched) -> None:
    launch = launched(PAIR)
    launch.until("ready on")
    launch.process.terminate()
    assert launch.end() == 0  # G4
    assert {"kind": "drain", "timeout": 10} in launch.commands()
    assert "SIGKILL" not in launch.console


def test_a_second_signal_ends_the_wait(launched: Launched) -> None:
    launch = launched(PAIR | {"proxy": ["ready"]}, drain_timeout=1000)
    launch.until("ready on")
    launch.process.terminate()
    launch.until("stopping")
    launch.process.terminate()
    assert launch.end() == 143  # G4


def test_a_child_that_ignores_sigterm_is_killed(launched: Launched) -> None:
    """So one reads the last order behind the signal: nobody comes in its place, although the launch did not drain."""
    launch = launched(PAIR | {"decode:0": ["deaf", "ready", "obey"]})
    launch.until("ready on")
    deaf = launch.children()["decode:0"]
    launch.process.send_signal(signal.SIGINT)
    assert launch.end() == 130
    assert not deaf.is_running()
    orders = [json.loads(line) for line in Path(f"{launch.trace}.orders").read_text().splitlines()]
    assert [(order["role"], order["drain"], order["for_good"]) for order in orders] == [("decode", 0.0, True)]


def test_workers_of_a_launch_that_fails_may_come_back(launched: Launched, waiting: WaitUntil) -> None:
    """A service manager starts it again: what a healthy one has begun waits for that."""
    launch = launched({"decode:0": ["deaf", "ready", "obey"], "decode:1": ["go on when told", "fail"]})
    launch.until(r"decode:0 \| ready")
    told, orders = Path(f"{launch.trace}.go"), Path(f"{launch.trace}.orders")
    waiting(orders.exists)
    told.touch()
    assert launch.end() == 1 and "decode:1 could not start" in launch.console
    assert not orders.read_text()


def test_what_a_dead_child_had_started_dies_too(launched: Launched, all_gone: Gone) -> None:
    launch = launched(PAIR | {"decode:0": ["grandchild", "ready"]})
    grandchild = psutil.Process(int(launch.until(r"grandchild (\d+)")[1]))
    launch.until("ready on")
    launch.children()["decode:0"].kill()
    all_gone([grandchild])
    again = psutil.Process(int(launch.until(r"grandchild (\d+)")[1]))
    launch.process.send_signal(signal.SIGINT)
    launch.end()
    all_gone([again])


def test_a_killed_launcher_leaves_nothing(launched: Launched, all_gone: Gone) -> None:
    launch = launched(PAIR)
    launch.until("ready on")
    family = list(launch.children().values())
    launch.process.kill()
    all_gone(family)  # G4
    assert str(launch.process.pid) in {path.name for path in launch.base.iterdir()}
    again = launched(PAIR)
    again.until("ready on")
    assert {path.name for path in again.base.iterdir()} == {".lock", str(again.process.pid)}


def test_a_download_ends_with_its_launcher(launched: Launched, all_gone: Gone) -> None:
    launch = launched(PAIR, prepare=["die with group", "grandchild"])
    download = psutil.Process(int(launch.until(r"grandchild (\d+)")[1]))
    launch.process.kill()
    all_gone([download])


def test_workers_alone_are_asked_themselves(launched: Launched) -> None:
    launch = launched({"decode:0": ["ready", "obey"]}, drain_timeout=1000)
    launch.until("ready")
    launch.until("after")
    launch.process.terminate()
    assert launch.end() == 0
