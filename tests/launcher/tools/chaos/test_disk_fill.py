# SPDX-License-Identifier: Apache-2.0
"""A small filesystem that is filled and emptied again."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from served import wait_for
from small_disk import needed_disk

from pontil.launcher.tools.chaos.disk_fill import DiskFill, small_filesystems

ROOT = Path(__file__).resolve().parents[4]
HOLDS = """
import sys, time
import app
from pontil.launcher.tools.chaos.disk_fill import DiskFill
with DiskFill(sys.argv[1]) as file:
    file.top_up()
    print("full", flush=True)
    sys.stdin.read()
"""
MOUNTS = """
import sys, pathlib
import app
from small_disk import small_disk
with small_disk(pathlib.Path(sys.argv[1])) as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with needed_disk(tmp_path) as folder:
        yield folder


def free(folder: Path) -> int:
    about = os.statvfs(folder)
    return about.f_bavail * about.f_frsize


def test_all_room_is_taken_also_what_is_freed_meanwhile_and_all_of_it_comes_back(disk: Path) -> None:
    (disk / "theirs").write_bytes(b"x" * 100_000)
    before = free(disk)
    with DiskFill(str(disk)) as file:
        assert file.top_up() >= before - 4096 and free(disk) == 0 and os.listdir(disk) == ["theirs"]
        with pytest.raises(OSError, match="No space left"):
            (disk / "more").write_bytes(b"x" * 10_000)
        (disk / "more").unlink()
        (disk / "theirs").unlink()
        assert free(disk) > 0
        file.top_up()
        assert free(disk) == 0
    assert free(disk) >= before + 100_000


def test_a_process_that_is_killed_leaves_nothing(disk: Path) -> None:
    before = free(disk)
    held = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(disk)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert held.stdout is not None and held.stdout.readline() == b"full\n" and free(disk) == 0
    held.send_signal(signal.SIGKILL)
    held.communicate()
    assert free(disk) == before


def test_a_test_that_is_killed_leaves_no_filesystem(disk: Path, tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    command, paths = [sys.executable, "-c", MOUNTS, str(below)], os.pathsep.join(filter(None, sys.path))
    test = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert test.stdout is not None
    folder = test.stdout.readline().decode().strip()
    assert os.path.ismount(folder) and os.path.ismount(disk)
    test.kill()
    test.communicate()
    wait_for(lambda: not os.path.ismount(folder), 30, "the end of the filesystem")


def test_a_file_that_is_closed_meanwhile_is_filled_no_more(disk: Path) -> None:
    """A fault that is cut short leaves a thread at work, and its descriptor may be another file's by then."""
    with DiskFill(str(disk)) as file:
        descriptor = file.file.fileno()
    with (disk / "theirs").open("wb") as theirs:
        assert theirs.fileno() == descriptor
        file.top_up()
        assert os.fstat(descriptor).st_size == 0 and free(disk) > 0


def test_the_file_has_no_name_at_any_time(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would stay if the process were killed before it is taken away."""
    monkeypatch.setattr(os, "unlink", lambda path: pytest.fail(f"{path} had a name"))
    with DiskFill(str(disk)):
        assert not os.listdir(disk)


def test_only_a_small_filesystem_is_filled_and_each_once(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (disk / "below").mkdir()
    found, reasons = small_filesystems([str(disk / "below"), str(disk), "/no/such/folder"])
    assert found == [str(disk / "below")] and reasons == [
        "/no/such/folder cannot be looked at (No such file or directory)"
    ]
    monkeypatch.setattr("pontil.launcher.tools.chaos.disk_fill.MOST_BYTES", 1 << 20)
    found, reasons = small_filesystems([str(disk)])
    assert not found and "only one of up to 1 GiB is filled" in reasons[0]
