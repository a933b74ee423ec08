# SPDX-License-Identifier: Apache-2.0
"""Notifications to the service manager, read from a real notify socket."""

import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pontil.launcher.host.notify import EXTEND_EVERY, Notifier, NotifyState, beat_of
from pontil.launcher.keys.key_file import make_key_file, read_key_file
from pontil.launcher.options.environment import LaunchEnvironment
from pontil.launcher.options.options import read_environment

DEADLINE = 60.0
PAIR = {"proxy": ["ready", "listen"], "prefill:0": ["ready"], "decode:0": ["ready"]}


class Manager:
    """The manager's end of a notify socket."""

    def __init__(self, address: str) -> None:
        self.name = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(DEADLINE)
        self.heard: list[str] = []

    def take(self) -> str:
        self.heard.append(self.socket.recv(4096).decode())
        return self.heard[-1]

    def until(self, line: str) -> str:
        """Return the first datagram from now on with a line that begins so."""
        end = time.monotonic() + DEADLINE
        while not any(one.startswith(line) for one in self.take().splitlines()):
            assert time.monotonic() < end, f"no {line} in {self.heard}"
        return self.heard[-1]

    def waiting(self) -> list[str]:
        """Return all datagrams that are there now."""
        self.socket.setblocking(False)
        found = []
        try:
            while True:
                found.append(self.take())
        except BlockingIOError:
            return found


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    made = Manager(f"@pontil-{secrets.token_hex(8)}" if request.param == "abstract" else str(tmp_path / "notify"))
    yield made
    made.socket.close()


def test_the_phases_of_a_launch(manager: Manager) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.name})
    for phase, now in ((NotifyState.STARTING, 0.0), (NotifyState.STARTING, 0.5), (NotifyState.STARTING, EXTEND_EVERY)):
        notifier.tick(phase, now)
    assert manager.waiting() == ["STATUS=starting", "EXTEND_TIMEOUT_USEC=60000000", "EXTEND_TIMEOUT_USEC=60000000"]
    notifier.tick(NotifyState.SERVING, 11.0)
    notifier.tick(NotifyState.SERVING, 50.0)
    assert manager.waiting() == [f"READY=1\nMAINPID={os.getpid()}", "STATUS=serving"], "said once"
    notifier.tick(NotifyState.STOPPING, 51.0)
    assert manager.waiting() == ["STOPPING=1", "STATUS=stopping", "EXTEND_TIMEOUT_USEC=60000000"]
    notifier.close()


def test_a_sign_of_life_comes_at_half_the_time(manager: Manager) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())})
    for now in range(0, 10):
        notifier.tick(NotifyState.SERVING, now * 0.5)
    assert manager.waiting().count("WATCHDOG=1") == 4, "at 0, 1.5, 3 and 4.5"
    notifier.close()


@pytest.mark.parametrize(
    "variables",
    [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "-5"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "٣"},
     {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}],
)  # fmt: skip
def test_a_watchdog_that_is_none_of_ours(variables: dict[str, str]) -> None:
    assert beat_of(variables) is None


@pytest.mark.parametrize("address", ["", "@", "notify", "/no/such/socket", "vsock:2:1"])
def test_where_nobody_listens_nothing_happens(address: str) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"})
    notifier.tick(NotifyState.SERVING, 0.0)
    notifier.reloading()
    notifier.reloaded()
    notifier.close()
    notifier.tick(NotifyState.STOPPING, 1.0)


def test_a_manager_that_does_not_read_holds_up_nobody(manager: Manager) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.name})
    for number in range(5000):
        notifier.tick(NotifyState.SERVING, 0.0, f"{number}")
    assert 0 < len(manager.waiting()) < 5000
    notifier.close()


def test_a_reload_is_said_with_its_time(manager: Manager) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.name})
    notifier.tick(NotifyState.SERVING, 0.0)
    manager.waiting()
    before = time.monotonic_ns() // 1000
    notifier.reloading()
    notifier.reloaded()
    begun, done = manager.waiting()
    kind, stamp = begun.splitlines()
    assert kind == "RELOADING=1" and before <= int(stamp.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000
    assert done == "READY=1\nSTATUS=serving"
    notifier.close()


def test_children_cannot_speak_in_our_name() -> None:
    variables = {"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "2", "HOME": "/h"}
    given = LaunchEnvironment(variables, 0).for_child(None)
    assert given["HOME"] == "/h" and not {name for name in given if name.startswith(("NOTIFY", "WATCHDOG"))}


def test_a_launch_tells_all_of_it(launched: Callable[..., Any], manager: Manager) -> None:  # G5
    variables = {"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": "600000"}
    launch = launched(PAIR, environment={**read_environment().variables, **variables})
    assert manager.take() == "STATUS=starting"
    ready = manager.until("READY=1")
    assert f"MAINPID={launch.process.pid}" in ready.splitlines()
    before = sum(one == "WATCHDOG=1" for one in manager.heard)
    manager.until("WATCHDOG=1")
    manager.until("WATCHDOG=1")
    assert before, "it beats while it starts, too"
    assert not any("NOTIFY_SOCKET" in child.environ() for child in launch.children().values())
    launch.process.send_signal(signal.SIGTERM)
    manager.until("STOPPING=1")
    assert launch.end() == 0
    assert not any(one.startswith("READY=1") for one in manager.waiting())


def test_a_reload_reads_the_keys_for_the_next_life(  # G5
    launched: Callable[..., Any], manager: Manager, tmp_path: Path
) -> None:
    make_key_file(tmp_path / "keys")
    first = read_key_file(tmp_path / "keys")
    (tmp_path / "trace.toml").touch()  # the options that are read again
    children = PAIR | {"decode:0": ["show keys", "ready"]}
    environment = {**read_environment().variables, "NOTIFY_SOCKET": manager.name}
    launch = launched(children, environment=environment, keys=str(tmp_path / "keys"))
    manager.until("READY=1")
    before = launch.children()
    make_key_file(tmp_path / "keys", force=True)
    launch.process.send_signal(signal.SIGHUP)
    manager.until("RELOADING=1")
    manager.until("READY=1")
    launch.until("reload: new keys from .*restart the proxy")
    assert {name: child.pid for name, child in launch.children().items()} == {
        name: child.pid for name, child in before.items()
    }, "what runs goes on"
    # A worker has the keys of the proxy beside it, also one that dies before that has the new ones.
    before["decode:0"].kill()
    launch.until("decode:0 was killed")
    launch.until("decode:0 .*keys None")
    before["proxy"].kill()
    launch.until("proxy was killed")
    launch.until("proxy .*ready after")
    launch.children()["decode:0"].kill()
    launch.until(f"keys {read_key_file(tmp_path / 'keys')}")
    assert first not in launch.console
    launch.process.send_signal(signal.SIGTERM)
    assert launch.end() == 0


def test_a_launcher_that_stands_still_sends_no_sign_of_life(
    launched: Callable[..., Any], manager: Manager
) -> None:  # G5
    variables = {"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": "600000"}
    launch = launched(PAIR, environment={**read_environment().variables, **variables})
    manager.until("READY=1")
    launch.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, launch.process.pid, os.WSTOPPED | os.WNOWAIT)
    manager.waiting()
    manager.socket.settimeout(1.0)
    with pytest.raises(TimeoutError):
        manager.take()
    manager.socket.settimeout(DEADLINE)
    launch.process.send_signal(signal.SIGCONT)
    manager.until("WATCHDOG=1")
