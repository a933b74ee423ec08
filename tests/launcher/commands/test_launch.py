# SPDX-License-Identifier: Apache-2.0
"""A launch plans on what others that live leave of the machine, and says where it has what they have."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import app

from pontil.launcher.child.starter import ExecStarter
from pontil.launcher.commands.launch import take_devices
from pontil.launcher.control.run_directory import LOCK, RunDirectory, take_lock
from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.foundation.held_devices import FILE, HeldDevices, read_held
from pontil.launcher.host.devices import HostDevices, find_machine
from pontil.launcher.options.options import LaunchOptions
from pontil.launcher.plan.topology import plan
from pontil.launcher.supervisor.supervisor import Orders
from pontil.runtime.foundation.number_ranges import spell

TWO_CORES = HostDevices((0, 1), 2, 0)
PREFILL = frozenset({"prefill"})


@contextmanager
def holder(base: Path, held: HeldDevices | str, name: str = "1") -> Iterator[None]:
    """Hold the run directory of another launch. A lock of this process is one to every other descriptor."""
    folder = base / name
    folder.mkdir(parents=True)
    lock = take_lock(folder / LOCK, wait=False)
    assert lock is not None
    try:
        if isinstance(held, str):
            (folder / FILE).write_text(held)
        else:
            held.write(folder)
        yield
    finally:
        os.close(lock)


def taken(base: Path, options: LaunchOptions, machine: HostDevices = TWO_CORES) -> tuple[HeldDevices, list[str]]:
    """Return what a launch takes, as it states it, and its messages."""
    directory = RunDirectory(base)
    directory.create()

    def orders_on(machine: HostDevices) -> Orders:
        made = plan(options, machine, directory.path, base)
        return Orders(made, ExecStarter((), lambda threads: {}), 30.0, machine=machine)

    try:
        orders, said = take_devices(directory, machine, orders_on)
        assert orders.machine and orders.machine.cores == machine.cores
        return read_held([directory.path]), said
    finally:
        directory.remove()


def decode(base: Path) -> LaunchOptions:
    return LaunchOptions(role="decode", join=f"ipc://{base}/control")


def test_a_launch_states_what_others_left_it(tmp_path: Path) -> None:
    with holder(tmp_path, HeldDevices(frozenset({0}), roles=PREFILL)):
        own, said = taken(tmp_path, decode(tmp_path))
        assert own == HeldDevices(frozenset({1}), roles=frozenset({"decode"})) and said == []
    own, said = taken(tmp_path, LaunchOptions(role="mixed"))
    assert own.cores == {0, 1} and said == [], "the other one is dead"


def test_a_launch_says_what_it_shares(tmp_path: Path) -> None:
    with holder(tmp_path, HeldDevices(frozenset({0, 1}), roles=PREFILL)):
        own, said = taken(tmp_path, decode(tmp_path))
        assert own.cores == {0, 1}
        assert said == ["another launch computes on cores 0-1 too: each is slower while the other computes"]


def test_a_damaged_statement_is_said_and_hides_no_other(tmp_path: Path) -> None:
    with holder(tmp_path, "{"), holder(tmp_path, HeldDevices(frozenset({0}), roles=PREFILL), "2"):
        own, (said,) = taken(tmp_path, decode(tmp_path))
        assert own.cores == {1} and said.startswith(f"{tmp_path / '1' / FILE} cannot be read")


def test_a_launch_without_a_gpu_is_refused_for_now(tmp_path: Path) -> None:
    one = HostDevices((0, 1), 2, 1)
    with holder(tmp_path, HeldDevices(gpus=frozenset({"0"}), roles=PREFILL)):
        with pytest.raises(LaunchError, match="No GPU is left for a decode worker .*other launches have 0"):
            taken(tmp_path, decode(tmp_path), one)
        own, (said,) = taken(tmp_path, LaunchOptions(role="mixed", share_devices=True), one)
        assert own.gpus == {"0"} and said.startswith("another launch computes on GPU 0 too")


def test_a_launch_that_is_refused_for_now_leaves_nothing_behind(tmp_path: Path) -> None:
    """It ends with exit code 1, after which a service manager tries again."""
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 0, 80000\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    words = ("launch", "--role", "mixed", "--port", "0", "--log-format", "json")
    base, path = tmp_path / "pontil", f"{tmp_path}:{os.environ['PATH']}"
    with holder(base, HeldDevices(gpus=frozenset({"0"}))):
        done = app(*words, PATH=path, XDG_RUNTIME_DIR=str(tmp_path))
        assert sorted(path.name for path in base.iterdir()) == [".lock", "1"]
    assert done.returncode == 1
    assert "other launches have 0): use --role mixed" in json.loads(done.stderr.splitlines()[-1])["message"]


@pytest.mark.skipif(len(find_machine("").affordable) < 2, reason="cores for two launches")
def test_a_plan_that_is_only_shown_leaves_out_what_others_have(tmp_path: Path) -> None:
    *others, last = find_machine("").affordable
    words = ("launch", "--role", "mixed", "--mixed", "cpu", "--dry-run")
    with holder(tmp_path / "pontil", HeldDevices(frozenset(others))):
        done = app(*words, XDG_RUNTIME_DIR=str(tmp_path))
        assert f"mixed:0      cpu      cores {last}\n" in done.stdout
    assert f"cores {spell([*others, last])}" in app(*words, XDG_RUNTIME_DIR=str(tmp_path)).stdout
