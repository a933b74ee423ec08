# SPDX-License-Identifier: Apache-2.0
"""Commands to a supervisor over its control socket: real processes, whose workers have no requests."""

import json
import os
import random
import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from effort import by_default

from pontil.launcher.commands.ready import said as readiness
from pontil.launcher.control.control_client import ControlReply, RunningLaunch, ask, find_launch
from pontil.launcher.control.control_socket import NAME
from pontil.launcher.control.run_directory import RunDirectory
from pontil.launcher.foundation.errors import LaunchError, OptionError
from pontil.launcher.foundation.held_devices import HeldDevices

Launched = Callable[..., Any]
WaitUntil = Callable[[Callable[[], object]], None]
OBEYS = ["ready", "obey"]
PAIR = {"proxy": ["ready", "listen"], "prefill:0": OBEYS, "decode:0": OBEYS}


def folder_of(launch: Any) -> Path:
    return Path(launch.base) / str(launch.process.pid)


def command(launch: Any, **request: Any) -> tuple[ControlReply, list[str]]:
    said: list[str] = []
    return ask(folder_of(launch), request, said.append), said


def refusal(launch: Any, **request: Any) -> str:
    reply, said = command(launch, **request)
    assert reply.code in (1, 2) and not said
    return reply.text


def orders(launch: Any) -> list[dict[str, Any]]:
    """Return the orders to the workers so far."""
    trace = Path(f"{launch.trace}.orders")
    return [json.loads(line) for line in trace.read_text().splitlines()] if trace.exists() else []


def rows(launch: Any) -> dict[str, dict[str, Any]]:
    """Return the supervisor's rows by name."""
    reply, _ = command(launch, command="describe")
    return {row["name"]: row for row in reply.facts["processes"]}


def states(launch: Any) -> dict[str, str]:
    return {name: row["state"] for name, row in rows(launch).items()}


def pids(launch: Any) -> dict[str, int]:
    return {name: row["pid"] for name, row in rows(launch).items()}


@pytest.fixture
def pair(launched: Launched) -> Any:
    launch = launched(PAIR)
    launch.until("ready on")
    return launch


def test_a_drained_worker_stays_and_comes_back(pair: Any, waiting: WaitUntil) -> None:
    before = pids(pair)
    reply, said = command(pair, command="drain", names=["decode:0"], drain_timeout=7)
    assert reply.code == 0 and "decode:0 is drained" in said[-1] and "undrain" in said[-1]
    assert states(pair)["decode:0"] == "drained" and pids(pair) == before
    with pytest.raises(LaunchError, match="decode:0 is drained"):
        readiness(find_launch(pair.base, folder_of(pair)))
    # The proxy's table shows it too.
    waiting(lambda: pair.commands()[-1]["rows"][2]["state"] == "drained")
    assert command(pair, command="undrain", names=["decode:0"])[0].code == 0
    assert set(states(pair).values()) == {"ready"} and pids(pair) == before
    assert readiness(find_launch(pair.base, folder_of(pair))) == "ready: proxy, prefill:0, decode:0"
    told = [(order["name"], order["role"], order["drain"], order["for_good"]) for order in orders(pair)]
    assert told == [("decode:0", "decode", 7.0, False), ("decode:0", "decode", None, False)]


def test_a_drained_worker_that_dies_comes_back_drained(pair: Any, waiting: WaitUntil) -> None:
    command(pair, command="drain", names=["decode:0"])
    pair.children()["decode:0"].kill()
    pair.until(r"decode:0 \| ready")
    waiting(lambda: states(pair)["decode:0"] == "drained")
    assert [order["drain"] for order in orders(pair)] == [10, 10], "told before it could take anything"


def test_a_restart_is_another_process_and_no_death(pair: Any) -> None:
    before = pids(pair)
    reply, said = command(pair, command="restart", names=["decode:0"])
    assert reply.code == 0 and "decode:0 is ready after" in said[-1]
    after = pids(pair)
    assert {name for name in before if before[name] != after[name]} == {"decode:0"}
    assert not any(order["for_good"] for order in orders(pair)), "another process comes in its place"
    pair.process.terminate()
    assert pair.end() == 0
    assert "starting it again" not in pair.console and "given up" not in pair.console


def test_a_proxy_that_restarts_leaves_what_goes_on_to_its_successor(pair: Any) -> None:
    """Connections wait until that serves."""
    reply, said = command(pair, command="restart", proxies=True, force=True, drain_timeout=7)
    assert reply.code == 0, said
    drains = [told for told in pair.commands() if told["kind"] == "drain"]
    assert drains == [{"kind": "drain", "timeout": 7.0, "hand_over": True, "alone": True}]


def test_a_rolling_restart_takes_one_after_the_other(launched: Launched, waiting: WaitUntil) -> None:
    launch = launched(PAIR | {"decode:1": OBEYS})
    launch.until("ready on")
    before = pids(launch)
    command(launch, command="drain", names=["decode:1"])
    reply, _ = command(launch, command="restart", all=True)
    after = pids(launch)
    assert reply.code == 0 and {name for name in before if before[name] == after[name]} == {"proxy"}
    assert states(launch)["decode:1"] == "drained"
    # In the proxy's tables, from when both served again, one of them always did.
    waiting(lambda: launch.commands()[-1]["rows"][2]["state"] == "ready")
    tables = [[row["state"] for row in table["rows"][1:3]] for table in launch.commands()]
    since = tables[tables.index(["ready", "ready"]) :]
    assert all("ready" in table for table in since) and {table.index("ready") for table in since} == {0, 1}


def test_a_worker_that_was_given_up_is_brought_back(launched: Launched) -> None:
    launch = launched(PAIR | {"decode:0": ["crash after the first life", "ready", "obey"]}, policy={"attempts": 0})
    launch.until("ready on")
    launch.children()["decode:0"].kill()
    launch.until("decode:0 .* is given up")
    Path(f"{launch.trace}.life").unlink()
    reply, _ = command(launch, command="restart", names=["decode:0"])
    assert reply.code == 0 and states(launch)["decode:0"] == "ready"


def test_a_restart_that_fails_says_so_and_leaves_the_others(launched: Launched) -> None:
    launch = launched(
        PAIR | {"decode:0": ["crash after the first life", "ready", "obey"]},
        policy={"attempts": 1, "first_delay": 0.01},
    )
    launch.until("ready on")
    before = pids(launch)
    reply, _ = command(launch, command="restart", names=["decode:0", "prefill:0"])
    assert reply.code == 1
    assert reply.text.startswith("decode:0 is given up") and "prefill:0 is left as before" in reply.text
    assert pids(launch)["prefill:0"] == before["prefill:0"]


def test_a_role_changes_in_the_living_process(pair: Any, waiting: WaitUntil) -> None:
    before = pids(pair)
    assert command(pair, command="role", names=["decode:0"], role="prefill")[0].code == 0
    assert pids(pair) == before and rows(pair)["decode:0"]["role"] == "prefill"
    # A restarted process keeps the role.
    pair.children()["decode:0"].kill()
    pair.until(r"decode:0 \| ready")
    waiting(lambda: len(orders(pair)) == 2)
    assert {order["role"] for order in orders(pair)} == {"prefill"}


def test_workers_come_and_go(pair: Any) -> None:
    reply, said = command(pair, command="scale", counts={"decode": 2})
    assert reply.code == 0 and "decode:1 is ready" in said[-1]
    assert list(rows(pair)) == ["proxy", "prefill:0", "decode:0", "decode:1"]
    assert "Nothing is free for another decode worker" in refusal(pair, command="scale", counts={"decode": 3})
    reply, said = command(pair, command="scale", counts={"decode": 1})
    assert reply.code == 0 and said[-1] == "decode:1 is gone"
    assert [order["name"] for order in orders(pair) if order["for_good"]] == ["decode:1"]
    assert set(pair.children()) == {"proxy", "prefill:0", "decode:0"} == set(rows(pair))
    assert command(pair, command="scale", counts={"decode": 1})[0] == ControlReply("done", 0, {})
    pair.process.terminate()
    assert pair.end() == 0 and "is given up" not in pair.console


def test_other_launches_know_what_the_workers_have(pair: Any) -> None:
    beside = RunDirectory(Path(pair.base))

    def held() -> HeldDevices:
        with beside.others() as found:
            return found

    assert command(pair, command="scale", counts={"decode": 2})[0].code == 0
    both = HeldDevices(frozenset({0, 1}), roles=frozenset({"prefill", "decode"}))
    assert held() == both
    assert command(pair, command="role", names=["prefill:0"], role="decode")[0].code == 0
    assert held() == replace(both, roles=frozenset({"decode"}))
    assert command(pair, command="scale", counts={"decode": 2})[0].code == 0
    assert held() == HeldDevices(frozenset({0}), roles=frozenset({"decode"}))


def test_a_new_worker_leaves_other_launches_what_they_have(pair: Any) -> None:
    beside = RunDirectory(Path(pair.base))
    beside.create()
    with beside.others() as found:
        assert found == HeldDevices(), "it has stated nothing yet"
        assert "Another launch takes devices" in refusal(pair, command="scale", counts={"decode": 2})
        assert command(pair, command="drain", names=["decode:0"])[0].code == 0, "which takes none"
        beside.hold(HeldDevices(frozenset({1})))
    assert "other launches have cores 1" in refusal(pair, command="scale", counts={"decode": 2})
    beside.remove()
    assert command(pair, command="scale", counts={"decode": 2})[0].code == 0


def test_a_new_worker_that_does_not_come_up_is_taken_back(launched: Launched) -> None:
    launch = launched(PAIR | {"decode:0": ["crash after the first life", "ready", "obey"]})
    launch.until("ready on")
    reply, _ = command(launch, command="scale", counts={"decode": 2})
    assert reply.code == 1 and "decode:1 did not start" in reply.text
    assert list(rows(launch)) == list(PAIR)


def test_what_cannot_be_is_refused_and_changes_nothing(pair: Any) -> None:
    for request, code, words in (
        ({"command": "dance"}, 2, "no command 'dance'"),
        ({"command": "drain", "names": ["proxy"]}, 2, "no worker 'proxy'"),
        ({"command": "drain", "names": ["decode:0", "prefill:0"]}, 1, "Nobody else would serve"),
    ):
        reply, said = command(pair, **request)
        assert (reply.code, said) == (code, []) and words in reply.text
    assert set(states(pair).values()) == {"ready"} and not orders(pair)


def test_one_change_at_a_time_and_a_client_that_leaves_stops_nothing(launched: Launched, waiting: WaitUntil) -> None:
    launch = launched(PAIR | {"decode:0": ["ready", "busy", "obey"]})
    launch.until("ready on")
    with ThreadPoolExecutor(1) as threads:
        first: Future[Any] = threads.submit(command, launch, command="drain", names=["decode:0"])
        waiting(lambda: states(launch)["decode:0"] == "draining")
        assert "Another change is under way (drain)" in refusal(launch, command="undrain", names=["decode:0"])
        launch.process.terminate()
        reply, _ = first.result(20)
        assert reply.code == 1 and "the launch is stopping" in reply.text
    assert launch.end() == 0


def test_a_death_in_the_middle_is_handled(launched: Launched) -> None:
    """The draining worker serves again while another one that exited is restarted; if it exits itself, it is just
    replaced."""
    launch = launched(PAIR | {"decode:0": ["ready", "busy", "obey"]})
    launch.until("ready on")
    before = pids(launch)
    with ThreadPoolExecutor(1) as threads:
        asked: Future[Any] = threads.submit(command, launch, command="restart", names=["decode:0"])
        launch.until("decode:0 takes no new requests")
        launch.children()["prefill:0"].kill()
        launch.until("decode:0 works again, as others do not")
        launch.until(r"prefill:0 \| ready")
        launch.until("decode:0 takes no new requests")
        launch.children()["decode:0"].kill()
        reply, said = asked.result(20)
    assert reply.code == 0 and "decode:0 is ready after" in said[-1]
    assert not {pid for name, pid in pids(launch).items() if name != "proxy"} & set(before.values())
    assert [order["drain"] for order in orders(launch)][:2] == [10, None]


def test_commands_wait_for_the_start(launched: Launched) -> None:
    launch = launched(PAIR, prepare=["grandchild"])
    launch.until("grandchild")
    assert "still starting" in refusal(launch, command="drain", names=["decode:0"])
    launch.process.send_signal(signal.SIGINT)
    assert launch.end() == 130


def test_a_launch_is_found_by_itself_and_chosen_where_there_are_several(launched: Launched) -> None:
    with pytest.raises(LaunchError, match="No launch of yours"):
        find_launch(Path("/nowhere"))
    one = launched(PAIR)
    one.until("ready on")
    assert find_launch(one.base).pid == one.process.pid
    other = launched(PAIR)
    other.until("ready on")
    with pytest.raises(OptionError, match="Several launches") as told:
        find_launch(one.base)
    assert all(f"pid {launch.process.pid}, http://here" in told.value.message for launch in (one, other))
    assert find_launch(one.base, pid=other.process.pid).directory == folder_of(other)
    assert find_launch(one.base, directory=folder_of(one)).pid == one.process.pid
    with pytest.raises(LaunchError, match="No running launch fits"):
        find_launch(one.base, port=1)
    other.process.kill()
    other.process.wait()
    assert find_launch(one.base).pid == one.process.pid, "one that was killed left its socket, and nobody answers"


def test_a_port_is_that_of_the_address() -> None:
    assert RunningLaunch(Path("/x"), {"url": "http://[::1]:8123"}).port == 8123
    assert RunningLaunch(Path("/x"), {"url": None}).port is None


def test_the_socket_is_private(pair: Any) -> None:
    assert (folder_of(pair) / NAME).stat().st_mode & 0o777 == 0o600


def test_sighup_changes_the_log_level_and_names_what_it_cannot(pair: Any, waiting: WaitUntil) -> None:
    Path(f"{pair.trace}.toml").write_text('log-level = "debug"\nblock-size = 32\n')
    pair.process.send_signal(signal.SIGHUP)
    pair.until("reload: log-level is now debug")
    pair.until("reload: Only a new launch takes over block-size")
    waiting(lambda: len([order for order in orders(pair) if order["kind"] == "log_level"]) == 2)
    waiting(lambda: {"kind": "log_level", "level": "debug"} in pair.commands())
    Path(f"{pair.trace}.toml").write_text("log-level = 7\n")
    reply, _ = command(pair, command="reload")
    assert reply.code == 0 and reply.text.startswith("Nothing was reloaded: log-level")
    assert set(states(pair).values()) == {"ready"}


def test_a_terminal_that_is_closed_ends_the_launch_and_a_living_one_does_not(launched: Launched) -> None:
    """SIGHUP can mean a reload or a lost terminal; a terminal that still exists means a reload."""
    master, slave = os.openpty()
    launch = launched(PAIR, terminal=slave)
    os.close(slave)
    launch.until("ready on")
    Path(f"{launch.trace}.toml").write_text("")
    launch.process.send_signal(signal.SIGHUP)
    launch.until("reload: Nothing has changed")
    os.close(master)
    assert launch.end() == 128 + signal.SIGHUP


def test_workers_alone_drain_before_they_end(launched: Launched) -> None:  # G4
    launch = launched({"decode:0": OBEYS, "decode:1": OBEYS}, drain_timeout=1000)
    launch.until("ready on")
    launch.process.terminate()
    assert launch.end() == 0
    assert [(order["drain"], order["for_good"]) for order in orders(launch)] == [(1000, True), (1000, True)]


def stir(launch: Any, luck: random.Random) -> None:
    """Send a command and, meanwhile, kill a process."""
    name, role = luck.choice(["prefill:0", "decode:0", "decode:1"]), luck.choice(["prefill", "decode", "mixed"])
    request: dict[str, Any] = luck.choice(
        [
            {"command": "drain", "names": [name]},
            {"command": "undrain", "names": [name]},
            {"command": "restart", "names": [name]},
            {"command": "restart", "all": True},
            {"command": "role", "names": [name], "role": role},
            {"command": "scale", "counts": {"decode": luck.choice([0, 1, 2])}},
        ]
    )
    with ThreadPoolExecutor(1) as threads:
        asked: Future[Any] = threads.submit(command, launch, **request)
        victim = pids(launch).get(luck.choice(["", "prefill:0", "decode:0", "decode:1", "proxy"]))
        if victim is not None:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        reply, _ = asked.result(60)
    assert reply.code in (0, 1, 2), request


@pytest.mark.parametrize("seed", by_default({1}, range(1, 30)))
def test_whatever_is_asked_and_whoever_dies_it_can_all_be_mended(
    launched: Launched, waiting: WaitUntil, seed: int
) -> None:
    luck = random.Random(seed)
    launch = launched(PAIR | {"decode:1": OBEYS}, policy={"attempts": 100, "first_delay": 0.01, "max_delay": 0.05})
    launch.until("ready on")
    for _ in range(8):
        stir(launch, luck)
    counts = {"prefill": 1, "decode": 1, "mixed": 0}
    waiting(lambda: command(launch, command="scale", counts=counts, force=True)[0].code == 0)
    workers = [name for name in rows(launch) if name != "proxy"]
    assert len(workers) == 2
    waiting(lambda: command(launch, command="undrain", names=workers)[0].code == 0)
    waiting(lambda: set(states(launch).values()) == {"ready"})
    assert {row["role"] for row in rows(launch).values()} == {"proxy", "prefill", "decode"}
    launch.process.terminate()
    assert launch.end() == 0 and "Traceback" not in launch.console
