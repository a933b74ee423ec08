# SPDX-License-Identifier: Apache-2.0
"""Roles on different hosts: three network namespaces, joined by a bridge, that this test makes and removes."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from served import ROOT, START_TIMEOUT, wait_for

NET = "10.213.77"
NAMES = ("proxy", "prefill", "decode")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@dataclass
class Hosts:
    """One namespace for each name, reachable as NET.1, NET.2, NET.3. The names carry our pid: others may run too."""

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

    def launch(self, name: str, log: Path, *arguments: str) -> None:
        command = self.inside(name, sys.executable, str(ROOT / "app.py"), "launch", "--role", name, *arguments)
        with log.open("wb") as file:
            self.running.append(subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT))

    def fetch(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """An HTTP request made on the proxy's host; None while it does not answer with 200."""
        command = ["curl", "-sf", f"http://127.0.0.1:8000{path}"]
        if body is not None:
            command += ["-H", "content-type: application/json", "-d", json.dumps(body)]
        done = subprocess.run(self.inside("proxy", *command), capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else None


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if os.getuid() != 0 or not shutil.which("ip") or not shutil.which("curl"):
        pytest.skip("network namespaces need root, iproute2 and curl")
    made = Hosts()
    try:
        made.make()
    except subprocess.CalledProcessError as error:
        made.remove()
        pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
    yield made
    made.remove()


def test_roles_on_three_hosts_form_one_system(hosts: Hosts, tmp_path: Path) -> None:  # C12
    control = f"tcp://{NET}.1:7000"
    near = ("--control", control, "--insecure")
    # The namespaces share one kernel: left to itself, the connector would find the peer's memory.
    far = ("--join", control, "--insecure", "--kv-connector", "tcp")
    hosts.launch("proxy", tmp_path / "proxy", *near)
    hosts.launch("prefill", tmp_path / "prefill", *far, "--prefill", "cpu:0")
    hosts.launch("decode", tmp_path / "decode", *far, "--decode", "cpu:1")

    def tested() -> list[tuple[str, str]]:
        answer = hosts.fetch("/admin/topology")
        return [(row["route"], row["state"]) for row in json.loads(answer)["routes"]] if answer else []

    wait_for(lambda: tested() == [("prefill:0>decode:0", "PASSED")], START_TIMEOUT, "a pair that was tested")  # G2
    metric = 'pontil_handoffs_total{result="complete"}'
    wait_for(lambda: f"{metric} 1.0" in (hosts.fetch("/metrics") or ""), 10, "the count of the self-test's handoff")
    body = {"model": "smollm2-135m-instruct", "prompt": "The capital of France is", "max_tokens": 5, "temperature": 0}
    answer = json.loads(hosts.fetch("/v1/completions", body))
    assert answer["choices"][0]["text"].startswith(" Paris")
    assert answer["usage"]["completion_tokens"] == 5
    wait_for(lambda: f"{metric} 2.0" in (hosts.fetch("/metrics") or ""), 10, "the count of the handoff")
