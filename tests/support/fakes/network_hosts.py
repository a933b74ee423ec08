# SPDX-License-Identifier: Apache-2.0
"""Hosts that are network namespaces, joined by a bridge, for launches that are apart; and links between them that are
cut without a word."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from served import ROOT

NET = "10.213.77"
NAMES = ("proxy", "prefill", "decode")
CONTROL = f"tcp://{NET}.1:7000"
# The namespaces share one kernel, so the automatic connector would find the peer's shared memory.
FAR = ("--join", CONTROL, "--kv-connector", "tcp")
MARK = "a-name-that-nobody-else-may-read"
# A host that is not there: what is sent to it is lost on the bridge.
NOWHERE = "02:00:00:00:00:fe"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@dataclass
class Hosts:
    """One namespace for each name, reachable as NET.1, NET.2, NET.3. The names contain our pid, since other runs may be
    active."""

    tag: str = field(default_factory=lambda: f"p{os.getpid() % 100000}")
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def make(self) -> None:
        ip("link", "add", f"{self.tag}br", "type", "bridge")
        ip("link", "set", f"{self.tag}br", "up")
        for number, name in enumerate(NAMES, 1):
            outer, inner = f"{self.tag}o{number}", f"{self.tag}i{number}"
            ip("netns", "add", f"{self.tag}-{name}")
            ip("link", "add", outer, "type", "veth", "peer", "name", inner)
            ip("link", "set", outer, "master", f"{self.tag}br", "up")
            ip("link", "set", inner, "netns", f"{self.tag}-{name}")
            ip("-n", f"{self.tag}-{name}", "addr", "add", f"{NET}.{number}/24", "dev", inner)
            ip("-n", f"{self.tag}-{name}", "link", "set", inner, "up")
            ip("-n", f"{self.tag}-{name}", "link", "set", "lo", "up")

    def remove(self) -> None:
        for process in self.running:
            process.send_signal(signal.SIGINT)
        for process in self.running:
            process.wait(30)
        for name in NAMES:
            subprocess.run(["ip", "netns", "del", f"{self.tag}-{name}"], capture_output=True)
        subprocess.run(["ip", "link", "del", f"{self.tag}br"], capture_output=True)

    def inside(self, name: str, *command: str) -> list[str]:
        return ["ip", "netns", "exec", f"{self.tag}-{name}", *command]

    def cut(self, name: str, state: str = "down") -> None:
        """Cut a host off, or join it again with the state "up"."""
        ip("link", "set", f"{self.tag}o{NAMES.index(name) + 1}", state)

    def lose(self, sender: str, receiver: str) -> None:
        """Drop without a word what one host sends to another, until `mend`."""
        self.neighbour(sender, "replace", receiver, "lladdr", NOWHERE, "nud", "permanent")

    def mend(self, sender: str, receiver: str) -> None:
        self.neighbour(sender, "del", receiver)

    def neighbour(self, name: str, change: str, other: str, *entry: str) -> None:
        number = NAMES.index(name) + 1
        address = f"{NET}.{NAMES.index(other) + 1}"
        ip("-n", f"{self.tag}-{name}", "neigh", change, address, *entry, "dev", f"{self.tag}i{number}")

    def launch(self, name: str, log: Path, *arguments: str, **variables: str) -> "subprocess.Popen[bytes]":
        command = self.inside(name, sys.executable, str(ROOT / "app.py"), "launch", "--role", name, *arguments)
        with log.open("wb") as file:
            launch_environment = {**os.environ, "PONTIL_KV_CACHE_MEMORY": "128MiB", **variables}
            self.running.append(
                subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=launch_environment)
            )
        return self.running[-1]

    def fetch(self, path: str, body: dict[str, Any] | None = None, timeout: float = 120.0) -> Any:
        """Send an HTTP request on the proxy's host; None unless the status is 200 within the timeout."""
        command = ["curl", "-sf", "-m", f"{timeout:g}", "-H", f"x-request-id: {MARK}", f"http://127.0.0.1:8000{path}"]
        if body is not None:
            command += ["-H", "content-type: application/json", "-d", json.dumps(body)]
        done = subprocess.run(self.inside("proxy", *command), capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else None

    def names(self) -> set[str]:
        answer = self.fetch("/admin/topology")
        return {row["name"] for row in json.loads(answer)["processes"]} if answer else set()
