# SPDX-License-Identifier: Apache-2.0
"""Disturbances of real processes over the control socket."""

import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from process_state import status_of

from pontil.launcher.control.control_client import ControlReply, ask
from pontil.launcher.control.control_socket import NAME

Launched = Callable[..., Any]
WaitUntil = Callable[[Callable[[], object]], None]
OBEYS = ["ready", "obey"]
PAIR = {"proxy": ["ready", "listen"], "prefill:0": OBEYS, "decode:0": OBEYS}


def folder_of(launch: Any) -> Path:
    return Path(launch.base) / str(launch.process.pid)


def chaos(launch: Any, **request: Any) -> ControlReply:
    return ask(folder_of(launch), {"command": "chaos", **request}, lambda text: None)


def begun(launch: Any, **request: Any) -> socket.socket:
    """Ask for a disturbance and do not wait for its end."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(str(folder_of(launch) / NAME))
    client.sendall(json.dumps({"command": "chaos", **request}).encode() + b"\n")
    return client


def is_stopped(process: psutil.Process) -> bool:
    return bool(status_of(process) == psutil.STATUS_STOPPED)


@pytest.fixture
def pair(launched: Launched) -> Any:
    launch = launched(PAIR, chaos=True)
    launch.until("chaos is allowed")
    launch.until("ready on")
    return launch


def test_a_launch_refuses_unless_it_was_started_for_it(launched: Launched) -> None:
    launch = launched(PAIR)
    launch.until("ready on")
    before = launch.children()
    for request in ({}, {"fault": "kill", "worker": "decode:0", "seconds": 0}):
        reply = chaos(launch, **request)
        assert reply.code == 2 and "--allow-chaos" in reply.text and not reply.facts
    assert {name: one.pid for name, one in launch.children().items()} == {n: one.pid for n, one in before.items()}


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"fault": "burn", "worker": "decode:0", "seconds": 1}, "A fault is one of kill, stop, slow, cut"),
        ({"fault": "stop", "worker": "decode:0", "seconds": 1e9}, "takes 0 to 120 seconds"),
        ({"fault": "stop", "worker": "decode:0", "seconds": True}, "takes 0 to 120 seconds"),
        ({"fault": "stop", "worker": "decode:0", "seconds": "1"}, "takes 0 to 120 seconds"),
        ({"fault": ["stop"], "worker": "decode:0", "seconds": 1}, "A fault is one of"),
        ({"fault": "stop", "worker": "proxy", "seconds": 1}, "proxy is the only proxy of this launch"),
        ({"fault": "stop", "worker": {"a": 1}, "seconds": 1}, "There is no worker"),
        ({"fault": "kill", "worker": "decode:0", "seconds": 0, "rank": 1}, "has ranks 0 to 0"),
        ({"fault": "kill", "worker": "decode:0", "seconds": 0, "rank": -1}, "has ranks 0 to 0"),
    ],
)
def test_what_is_no_disturbance_is_refused(pair: Any, request_: dict[str, Any], reason: str) -> None:
    reply = chaos(pair, **request_)
    assert reply.code == 2 and reason in reply.text


def test_a_stopped_worker_goes_on_after_its_time(pair: Any, waiting: WaitUntil) -> None:
    before = pair.children()["decode:0"]
    client = begun(pair, fault="stop", worker="decode:0", seconds=2.0)
    pair.until("chaos: decode:0: stop for 2.0 s")
    waiting(lambda: is_stopped(before))
    refused = chaos(pair, fault="slow", worker="decode:0", seconds=1)
    assert refused.code == 1 and "disturbed already" in refused.text
    refused = chaos(pair, fault="kill", worker="prefill:0", seconds=0)
    assert refused.code == 1 and "Nobody would serve" in refused.text
    reply = json.loads(client.makefile().readline())
    client.close()
    assert reply["facts"]["survived"] and reply["facts"]["ended"] - reply["facts"]["begun"] >= 2.0
    assert not is_stopped(before) and not chaos(pair).facts["exits"]


def test_one_that_is_drained_does_not_stand_in_for_another(pair: Any) -> None:
    drained = ask(folder_of(pair), {"command": "drain", "names": ["prefill:0"]}, lambda text: None)
    assert drained.code == 0
    refused = chaos(pair, fault="kill", worker="decode:0", seconds=0)
    assert refused.code == 1 and "Nobody would serve" in refused.text


def test_a_proxy_is_disturbed_only_while_another_serves(launched: Launched, waiting: WaitUntil) -> None:
    launch = launched({"proxy:0": ["ready", "listen"], "proxy:1": ["ready", "listen"], "decode:0": OBEYS}, chaos=True)
    launch.until("ready on")
    waiting(lambda: sum(one["ready"] for one in chaos(launch).facts["children"]) == 3)
    refused = chaos(launch, fault="cut", worker="proxy:0", seconds=1)
    assert refused.code == 2 and "proxy:0 is a proxy" in refused.text
    refused = chaos(launch, fault="kill", worker="decode:0", seconds=0)
    assert refused.code == 1 and "Nobody would serve" in refused.text, "a proxy stands in for no worker"
    before = launch.children()["proxy:0"]
    with begun(launch, fault="stop", worker="proxy:0", seconds=60):
        waiting(lambda: is_stopped(before))
        refused = chaos(launch, fault="kill", worker="proxy:1", seconds=0)
        assert refused.code == 1 and "Nobody would serve without proxy:1" in refused.text
    waiting(lambda: not is_stopped(before))
    since = chaos(launch).facts["now"]
    waiting(lambda: chaos(launch, fault="kill", worker="proxy:1", seconds=0).code == 0)
    waiting(lambda: chaos(launch, since=since).facts["exits"])
    exits = chaos(launch, since=since).facts["exits"]
    assert [(one["name"], one["reason"]) for one in exits] == [("proxy:1", "was killed by SIGKILL")]


def test_a_client_that_leaves_ends_its_disturbance(pair: Any, waiting: WaitUntil) -> None:
    before = pair.children()["decode:0"]
    with begun(pair, fault="stop", worker="decode:0", seconds=60):
        waiting(lambda: is_stopped(before))
    waiting(lambda: not is_stopped(before))
    assert not any(one["disturbed"] for one in chaos(pair).facts["children"])


def test_a_worker_that_is_stopped_for_too_long_is_replaced_by_one_that_runs(pair: Any) -> None:
    since = chaos(pair).facts["now"]
    reply = chaos(pair, fault="stop", worker="decode:0", seconds=60)
    assert reply.code == 0 and not reply.facts["survived"] and reply.facts["ended"] - reply.facts["begun"] < 30
    pair.until(r"decode:0 \| ready")
    assert not is_stopped(pair.children()["decode:0"])
    exits = chaos(pair, since=since).facts["exits"]
    assert [(one["name"], one["cause"]) for one in exits] == [("decode:0", "sick")]


def test_a_killed_worker_and_the_end_of_a_launch_with_one_stopped(pair: Any) -> None:
    since = chaos(pair).facts["now"]
    assert chaos(pair, fault="kill", worker="decode:0", seconds=0).code == 0
    pair.until(r"decode:0 \| ready")
    exits = chaos(pair, since=since).facts["exits"]
    assert [(one["name"], one["reason"]) for one in exits] == [("decode:0", "was killed by SIGKILL")]
    stopped = pair.children()["decode:0"]
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(chaos, pair, fault="stop", worker="decode:0", seconds=60)
        pair.until("chaos: decode:0: stop")
        pair.process.terminate()
        assert waits.result(30).facts["survived"], "it went on before it was asked to end"
    assert pair.end() == 0 and not stopped.is_running()


def test_a_slowed_worker_stays_and_a_cut_is_told_to_the_worker(pair: Any, waiting: WaitUntil) -> None:
    before = pair.children()["decode:0"]
    reply = chaos(pair, fault="slow", worker="decode:0", seconds=1.2)
    assert reply.facts["survived"] and not is_stopped(before) and pair.children()["decode:0"].pid == before.pid
    for fault in ("cut", "stall"):
        assert chaos(pair, fault=fault, worker="decode:0", seconds=0.3).facts["survived"]
    # The scripted worker writes each order down as one line.
    trace = Path(f"{pair.trace}.orders")
    waiting(lambda: trace.exists() and trace.read_text().count("\n") == 4)
    orders = [json.loads(line) for line in trace.read_text().splitlines()]
    assert [(one["kind"], one["name"], one["seconds"]) for one in orders] == [
        ("cut", "decode:0", 0.3), ("cut", "decode:0", 0.0), ("stall", "decode:0", 0.3), ("stall", "decode:0", 0.0),
    ]  # fmt: skip


def test_one_rank_can_be_killed_and_all_of_its_worker_are_replaced(launched: Launched) -> None:
    launch = launched({"proxy": ["ready", "listen"], "prefill:0": OBEYS, "decode:0": [OBEYS, ["ready"]]}, chaos=True)
    launch.until("ready on")
    refused = chaos(launch, fault="cut", worker="decode:0", rank=1, seconds=1)
    assert refused.code == 2 and "disturbed at rank 0" in refused.text
    assert chaos(launch, fault="kill", worker="decode:0", rank=1, seconds=0).code == 0
    launch.until(r"decode:0 lost decode:0\+1, which was killed by SIGKILL")
    launch.until(r"decode:0 \| ready")
