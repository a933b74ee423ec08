# SPDX-License-Identifier: Apache-2.0
"""Hosts that are network namespaces, joined by a bridge, for launches that are apart; and links between them that are
cut without a word."""

import contextlib
import json
import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forked_program import ForkedProgram, fork_program, launch_environment
from served import APP

NET = "10.213.77"
NAMES = ("proxy", "prefill", "decode")
TWO_PROXIES = (*NAMES, "other-proxy")
CONTROL, OTHER_CONTROL = f"tcp://{NET}.1:7000", f"tcp://{NET}.4:7000"
# The namespaces share one kernel, so the automatic connector would find the peer's shared memory.
FAR = ("--join", CONTROL, "--kv-connector", "tcp")
MARK = "a-name-that-nobody-else-may-read"
# The end of the name of a machine whose address another one has.
ASLEEP = "-asleep"
# A host that is not there: what is sent to it is lost on the bridge.
NOWHERE = "02:00:00:00:00:fe"


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


@dataclass
class Hosts:
    """One namespace for each of the `names`, reachable as NET.1, NET.2 and so on. The names of what is made contain our
    pid, since other runs may be active."""

    names: tuple[str, ...] = NAMES
    tag: str = field(default_factory=lambda: f"p{os.getpid() % 100000}")
    running: dict[str, list[ForkedProgram]] = field(default_factory=dict)
    asleep: list[str] = field(default_factory=list)

    def make(self) -> None:
        ip("link", "add", f"{self.tag}br", "type", "bridge")
        ip("link", "set", f"{self.tag}br", "up")
        for name in self.names:
            self.make_host(name)

    def make_host(self, name: str) -> None:
        outer, inner = self.link(name), f"{self.tag}i{self.number(name)}"
        ip("netns", "add", f"{self.tag}-{name}")
        ip("link", "add", outer, "type", "veth", "peer", "name", inner)
        ip("link", "set", outer, "master", f"{self.tag}br", "up")
        ip("link", "set", inner, "netns", f"{self.tag}-{name}")
        ip("-n", f"{self.tag}-{name}", "addr", "add", f"{self.address(name)}/24", "dev", inner)
        ip("-n", f"{self.tag}-{name}", "link", "set", inner, "up")
        ip("-n", f"{self.tag}-{name}", "link", "set", "lo", "up")

    def number(self, name: str) -> int:
        return self.names.index(name) + 1

    def address(self, name: str) -> str:
        return f"{NET}.{self.number(name)}"

    def link(self, name: str) -> str:
        """Return the name of the bridge's end of a host's link."""
        return f"{self.tag}o{self.number(name.removesuffix(ASLEEP))}{'z' * name.endswith(ASLEEP)}"

    @property
    def launchers(self) -> list[ForkedProgram]:
        return [process for processes in self.running.values() for process in processes]

    def remove(self) -> None:
        for name in (*self.names, *self.asleep) if self.asleep else ():
            self.signal_all(name, signal.SIGCONT)
        for process in self.launchers:
            process.send_signal(signal.SIGINT)
        for process in self.launchers:
            process.wait(30)
        for name in (*self.names, *self.asleep):
            subprocess.run(["ip", "netns", "del", f"{self.tag}-{name}"], capture_output=True)
            # A namespace ends in the background, and its links with it.
            subprocess.run(["ip", "link", "del", self.link(name)], capture_output=True)
        subprocess.run(["ip", "link", "del", f"{self.tag}br"], capture_output=True)

    def inside(self, name: str, *command: str) -> list[str]:
        return ["ip", "netns", "exec", f"{self.tag}-{name}", *command]

    def cut(self, name: str, state: str = "down") -> None:
        """Cut a host off, or join it again with the state "up"."""
        ip("link", "set", self.link(name), state)

    def lose(self, sender: str, receiver: str) -> None:
        """Drop without a word what one host sends to another, until `mend`."""
        self.neighbour(sender, "replace", receiver, "lladdr", NOWHERE, "nud", "permanent")

    def mend(self, sender: str, receiver: str) -> None:
        self.neighbour(sender, "del", receiver)

    def neighbour(self, name: str, change: str, other: str, *entry: str) -> None:
        device = f"{self.tag}i{self.number(name)}"
        ip("-n", f"{self.tag}-{name}", "neigh", change, self.address(other), *entry, "dev", device)

    def signal_all(self, name: str, number: signal.Signals) -> None:
        """Send a signal to every process on a host."""
        for pid in ip("netns", "pids", f"{self.tag}-{name}").split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), number)

    def replace(self, name: str) -> None:
        """Have a host die without a word, and another machine with its address take its place."""
        self.cut(name)
        self.signal_all(name, signal.SIGKILL)
        for process in self.running.pop(name, []):
            process.wait(30)
        ip("link", "del", self.link(name))
        ip("netns", "del", f"{self.tag}-{name}")
        self.make_host(name)

    def put_to_sleep(self, name: str) -> None:
        """Have a host stop without a word, and another machine with its address take its place, until `wake`."""
        self.cut(name)
        self.signal_all(name, signal.SIGSTOP)
        asleep = name + ASLEEP
        self.asleep.append(asleep)
        ip("netns", "attach", f"{self.tag}-{asleep}", str(self.running[name][0].pid))
        ip("netns", "del", f"{self.tag}-{name}")
        ip("link", "set", self.link(name), "name", self.link(asleep))
        self.make_host(name)

    def wake(self, name: str) -> None:
        """Have the machine that took a host's place stop without a word, and the earlier one go on."""
        self.cut(name)
        self.signal_all(name, signal.SIGSTOP)
        self.cut(name + ASLEEP, "up")
        self.signal_all(name + ASLEEP, signal.SIGCONT)

    def launch(self, name: str, log: Path, *arguments: str, role: str | None = None, **variables: str) -> ForkedProgram:
        """Launch on a host what its name says, or another `role`."""
        options = ("--role", role or name, *arguments)
        network = Path("/run/netns") / f"{self.tag}-{name}"
        with log.open("ab") as file, open(os.devnull) as nothing:
            files = [nothing.fileno(), file.fileno(), file.fileno()]
            around = {**launch_environment(), **variables}
            process = fork_program([str(APP), "launch", *options], Path.cwd(), files, around, network)
        self.running.setdefault(name, []).append(process)
        return process

    def curl(self, path: str, body: dict[str, Any] | None, timeout: float, on: str) -> list[str]:
        """Return the command that sends an HTTP request on a proxy's host."""
        command = ["curl", "-sfN", "-m", f"{timeout:g}", "-H", f"x-request-id: {MARK}", f"http://127.0.0.1:8000{path}"]
        if body is not None:
            command += ["-H", "content-type: application/json", "-d", json.dumps(body)]
        return self.inside(on, *command)

    def fetch(self, path: str, body: dict[str, Any] | None = None, timeout: float = 120.0, on: str = "proxy") -> Any:
        """Send an HTTP request on a proxy's host; None unless the status is 200 within the timeout."""
        done = subprocess.run(self.curl(path, body, timeout, on), capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else None

    def processes(self) -> list[dict[str, Any]]:
        answer = self.fetch("/admin/topology")
        rows: list[dict[str, Any]] = json.loads(answer)["processes"] if answer else []
        return rows

    def process_names(self) -> set[str]:
        """Return the names of the processes that the proxy shows."""
        return {row["name"] for row in self.processes()}
