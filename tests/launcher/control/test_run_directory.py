# SPDX-License-Identifier: Apache-2.0
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from served import wait_for

from pontil.launcher.control.run_directory import RunDirectory
from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.foundation.held_devices import FILE, HeldDevices

ROOT = Path(__file__).resolve().parents[3]
# Takes one of two cores that nobody has, by steps that each wait for a line, and says which it took.
TAKER = """
import app, sys, pathlib
from pontil.launcher.control.run_directory import RunDirectory
from pontil.launcher.foundation.held_devices import HeldDevices
directory = RunDirectory(pathlib.Path(sys.argv[1]))
directory.create()
print("made", flush=True)
input()
with directory.others() as held:
    print("alone", flush=True)
    input()
    own = min({0, 1} - held.cores)
    directory.hold(HeldDevices(frozenset({own})))
print(own, flush=True)
input()
"""


class Taker:
    """A launch in a process of its own, which takes a core when it is told."""

    def __init__(self, base: Path) -> None:
        command = [sys.executable, "-c", TAKER, str(base)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def tell(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def takers(base: Path, count: int) -> Iterator[list[Taker]]:
    made = [Taker(base) for _ in range(count)]
    try:
        assert [one.line() for one in made] == ["made"] * count
        yield made
    finally:
        for one in made:
            one.kill()


def test_it_is_private_and_goes_with_its_launch(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "base")
    directory.create()
    assert directory.path.name == str(os.getpid())
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (directory.base, directory.path)} == {0o700}
    directory.remove()
    assert not directory.path.exists()


def test_directories_of_dead_launchers_are_removed_and_those_of_living_ones_kept(tmp_path: Path) -> None:
    for name in ("123", "not-a-pid"):
        (tmp_path / name).mkdir()
    (tmp_path / "123" / "control").touch()
    holder = (
        "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX); "
        "print(1, flush=True); input()"
    )
    (tmp_path / "456").mkdir()
    living = subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path / "456" / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert living.stdout and living.stdout.readline()
    directory = RunDirectory(tmp_path)
    directory.create()
    left = {folder.name for folder in tmp_path.iterdir()}
    living.communicate(b"\n")
    directory.remove()
    assert left == {".lock", "456", "not-a-pid", str(os.getpid())}


def test_a_base_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "base").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LaunchError, match="XDG_RUNTIME_DIR"):
        RunDirectory(tmp_path / "base").create()
    with pytest.raises(LaunchError, match="XDG_RUNTIME_DIR"):
        RunDirectory(Path("/proc/none")).create()


def held_beside(directory: RunDirectory) -> HeldDevices:
    with directory.others() as held:
        return held


def waits_for_a_lock(process: int) -> bool:
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and f" {process} " in line for line in lines)


def test_two_launches_at_once_take_different_devices(tmp_path: Path) -> None:
    with takers(tmp_path, 2) as (first, second):
        first.tell()
        assert first.line() == "alone"
        second.tell()
        wait_for(lambda: waits_for_a_lock(second.process.pid), 60.0, "the second launch at the lock")
        first.tell()
        assert first.line() == "0"
        assert second.line() == "alone"
        second.tell()
        assert second.line() == "1"


def test_a_dead_launch_has_nothing(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with takers(tmp_path, 1) as launches:
        launches[0].tell()
        launches[0].tell()
        assert [launches[0].line(), launches[0].line()] == ["alone", "0"]
        assert held_beside(directory) == HeldDevices(frozenset({0}))
        launches[0].kill()
        assert held_beside(directory) == HeldDevices()
        assert list(tmp_path.glob(f"*/{FILE}")), "nobody has removed it yet"


def test_a_launch_does_not_count_its_own_devices_and_leaves_none_behind(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    own = HeldDevices(frozenset({0}), frozenset({"1"}), frozenset({"prefill"}))
    assert directory.hold(own) == [] and held_beside(directory) == HeldDevices(), "before there is a directory"
    directory.create()
    assert directory.hold(own) == [] and held_beside(directory) == HeldDevices()
    assert list(tmp_path.glob(f"*/{FILE}")) == [directory.path / FILE]
    directory.remove()
    assert list(tmp_path.iterdir()) == [tmp_path / ".lock"]


def test_who_does_not_wait_is_told_that_another_launch_takes_devices(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with directory.guarded(), pytest.raises(LaunchError, match="try again"), directory.others(wait=False):
        raise AssertionError
    with directory.others(wait=False) as held:
        assert held == HeldDevices()


def test_a_launch_that_cannot_state_its_devices_says_so(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.create()
    (directory.path / f".{FILE}").mkdir()
    (said,) = directory.hold(HeldDevices(frozenset({0})))
    assert str(directory.path) in said and "may take devices of this one" in said
    directory.remove()
