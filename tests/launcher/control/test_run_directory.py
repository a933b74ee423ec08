# SPDX-License-Identifier: Apache-2.0
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pontil.launcher.control.run_directory import RunDirectory
from pontil.launcher.foundation.errors import LaunchError


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
