# SPDX-License-Identifier: Apache-2.0
"""The units that `pontil units` writes, started by a real systemd, as process 1 of namespaces of its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from served import ROOT, START_TIMEOUT, Served, free_port, wait_for
from tiny_llama import write_tiny_llama

from pontil.launcher.keys.key_file import make_key_file

SHIPPED = ROOT / "scripts" / "systemd"
BOX = ROOT / "tests" / "support" / "systemd_box.sh"
WORKER = ("--model", "/opt/model", "--kv-cache-memory", "16MiB", "--kv-connector", "shm")
# Where the file of keys, the checkout and the interpreter of these tests lie inside.
KEYS, CHECKOUT = "/opt/model/api.keys", "/opt/checkout"
PYTHON = sys.executable.replace(str(ROOT), CHECKOUT)
OLD, NEW = "sk-old-0123456789-old", "sk-new-0123456789-new"
WORKERS = ("pontil-prefill@cpu:0", "pontil-decode@cpu:1")


@dataclass
class Box:
    """One running systemd. `init` is its pid outside the namespaces."""

    init: int
    port: int

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        inside = ["nsenter", "-t", str(self.init), "-m", "-p", "-u", "-i", "-C", "-r", "-w", *command]
        return subprocess.run(inside, capture_output=True, text=True, timeout=START_TIMEOUT)

    def systemctl(self, *words: str) -> str:
        return self.run("systemctl", *words).stdout.strip()

    def state(self, unit: str, *names: str) -> list[str]:
        return [self.systemctl("show", "--value", "-p", name, unit) for name in names]


def write_units(folder: Path, control: str, port: int) -> None:
    (folder / "units").mkdir()
    keys = folder / "model" / "api.keys"
    keys.write_text(f"alice={OLD}\n")
    keys.chmod(0o600)
    for words in (
        (
            "--role",
            "proxy",
            "--api-keys",
            str(keys),
            "--control",
            control,
            "--port",
            str(port),
            "--model",
            "/opt/model",
        ),
        ("--role", "prefill", "--prefill", "cpu:0", "--join", control, *WORKER),
        ("--role", "decode", "--decode", "cpu:1", "--join", control, *WORKER),
    ):
        command = [sys.executable, str(ROOT / "app.py"), "units", "--install-dir", str(folder / "units"), "--", *words]
        subprocess.run(command, check=True, capture_output=True)
    for unit in (folder / "units").iterdir():
        unit.write_text(unit.read_text().replace(str(keys), KEYS).replace(str(ROOT), CHECKOUT))


def copy_shipped(folder: Path, port: int) -> None:
    """Do what an operator does on a new host: the shipped units, the samples with another model and port, a file of
    keys, the name of the proxy's host, and the checkout's command."""
    configured, programs = folder / "files" / "etc" / "pontil", folder / "files" / "usr" / "local" / "bin"
    for made in (configured, programs, folder / "units"):
        made.mkdir(parents=True)
    for unit in SHIPPED.glob("*.service"):
        shutil.copy(unit, folder / "units")
    for sample in SHIPPED.glob("*.toml"):
        text = sample.read_text().replace('"smollm2-135m-instruct"', '"/opt/model"').replace('"1GiB"', '"16MiB"')
        (configured / sample.name).write_text(text.replace("port = 8000", f"port = {port}"))
    make_key_file(configured / "pontil.keys")
    (folder / "files" / "etc" / "hosts").write_text("127.0.0.1 localhost proxy.internal\n")
    # By a link, as an operator makes one, with the interpreter of these tests in the place of the checkout's.
    (programs / "linked").symlink_to(f"{CHECKOUT}/scripts/pontil")
    (programs / "pontil").write_text(f'#!/bin/sh\nPYTHON={PYTHON} exec /usr/local/bin/linked "$@"\n')
    (programs / "pontil").chmod(0o755)


@contextmanager
def opened(tmp_path: Path, write: Callable[[Path, int], None]) -> Iterator[Box]:
    if os.getuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "systemctl"))):
        pytest.skip("a systemd of its own needs root, util-linux and systemd")
    port, group = free_port(), f"pontil-box-{os.getpid()}"
    write_tiny_llama(tmp_path / "model")
    write(tmp_path, port)
    with (tmp_path / "log").open("wb") as log:
        starter = subprocess.Popen([str(BOX), group, str(tmp_path)], stdout=log, stderr=subprocess.STDOUT)
    try:
        yield started(starter, tmp_path / "log", port)
    finally:
        starter.kill()
        starter.wait()
        wait_for(lambda: all(map(removed, Path("/sys/fs/cgroup").glob(f"**/{group}"))), 30, "the end of its processes")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with opened(tmp_path, lambda folder, port: write_units(folder, f"tcp://127.0.0.1:{free_port()}", port)) as made:
        yield made


@pytest.fixture
def shipped(tmp_path: Path) -> Iterator[Box]:
    with opened(tmp_path, copy_shipped) as made:
        yield made


def started(starter: "subprocess.Popen[bytes]", log: Path, port: int) -> Box:
    def running() -> Box | None:
        if starter.poll() is not None:
            pytest.skip(f"systemd cannot run here: {log.read_text().strip()[-300:]}")
        inits = [child for child in psutil.Process(starter.pid).children() if child.name() == "systemd"]
        made = [Box(init.pid, port) for init in inits]
        return made[0] if made and made[0].systemctl("is-system-running") == "running" else None

    made = wait_for(running, 30, "systemd")
    assert made is not None
    return made


def removed(group: Path) -> bool:
    """Remove a control group and those below it; return whether that worked, which needs them to be empty."""
    for folder in sorted(group.glob("**/"), reverse=True):
        with suppress(OSError):
            folder.rmdir()
    return not group.exists()


@pytest.mark.long
def test_units_of_each_role_start_serve_restart_and_stop(box: Box, tmp_path: Path) -> None:  # G5
    box.systemctl("start", "--no-block", *WORKERS)
    done = box.run("systemctl", "start", "pontil-proxy")
    assert done.returncode == 0, box.run("journalctl", "--no-pager", "-n", "40", "-u", "pontil-proxy").stdout
    answered(box, tmp_path)
    (before,) = box.state("pontil-proxy", "MainPID")
    box.run("kill", "-KILL", before)
    wait_for(lambda: box.state("pontil-proxy", "ActiveState", "NRestarts") == ["active", "1"], 60, "the restart")
    answered(box, tmp_path)
    assert [status(box, key) for key in (OLD, NEW)] == [200, 401]
    assert box.run("sh", "-c", f"echo alice={NEW} > {KEYS}").returncode == 0
    assert box.run("systemctl", "reload", "pontil-proxy").returncode == 0
    wait_for(lambda: [status(box, key) for key in (OLD, NEW)] == [401, 200], 30, "the end of the old key")
    box.systemctl("stop", "pontil-proxy", *WORKERS)
    for unit in ("pontil-proxy", *WORKERS):
        assert box.state(unit, "ActiveState", "Result") == ["inactive", "success"], unit
    assert box.run("ls", "/run").stdout.count("pontil") == 0


@pytest.mark.long
def test_the_shipped_units_run_from_a_checkout_by_the_samples(shipped: Box, tmp_path: Path) -> None:  # G5
    box = shipped
    box.systemctl("start", "--no-block", *WORKERS)
    done = box.run("systemctl", "start", "pontil-proxy")
    assert done.returncode == 0, box.run("journalctl", "--no-pager", "-n", "40", "-u", "pontil-proxy").stdout
    answered(box, tmp_path)
    assert box.run("test", "-s", "/var/lib/pontil/usage.db").returncode == 0, "a relative file lies in its folder"
    box.systemctl("stop", "pontil-proxy", *WORKERS)
    for unit in ("pontil-proxy", *WORKERS):
        assert box.state(unit, "ActiveState", "Result") == ["inactive", "success"], unit


def answered(box: Box, folder: Path) -> None:
    """Check that all units are up and a request was handed off between two of them through shared memory."""
    wait_for(lambda: {box.systemctl("is-active", unit) for unit in WORKERS} == {"active"}, START_TIMEOUT, "the workers")
    starter = subprocess.Popen(["true"])
    starter.wait()
    served = Served(starter, box.port, folder / "log", folder / "usage.db")
    served.key = {"authorization": f"Bearer {OLD}"}
    wait_for(lambda: works(served), 60, "a pair that was tested")
    body = {"model": "model", "prompt": [5, 6, 7] * 9, "max_tokens": 4}
    reply = served.request("POST", "/v1/completions", body, served.key)
    assert reply.status == 200 and reply.header("x-pontil-route") == "prefill:0>decode:0"
    reply.text()
    wait_for(lambda: served.metric("pontil_kv_transfer_bytes_total") > 0, 60, "the count of what moved")


def status(box: Box, key: str) -> int:
    served = Served(subprocess.Popen(["true"]), box.port, Path(), Path())
    served.process.wait()
    return served.request("GET", "/v1/models", headers={"authorization": f"Bearer {key}"}).status


def works(served: Served) -> bool:
    try:
        return [row["state"] for row in served.get("/admin/topology")["routes"]] == ["PASSED"]
    except OSError:
        return False
