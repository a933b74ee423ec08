# SPDX-License-Identifier: Apache-2.0
"""A small filesystem in memory, where this user may mount one."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pontil.launcher.tools.chaos.disk_fill import DiskFill

MEBIBYTES = 16


def mounted(folder: Path) -> bool:
    """Mount a filesystem at a new folder; return whether that was possible."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={MEBIBYTES}m", "none", str(folder)]
    try:
        return subprocess.run(command, capture_output=True, timeout=30).returncode == 0
    except FileNotFoundError:
        return False


@contextmanager
def small_disk(parent: Path) -> Iterator[Path | None]:
    """Give the folder of such a filesystem below `parent`, None where none can be mounted: that takes root."""
    folder = parent / "small-disk"
    if not mounted(folder):
        yield None
        return
    try:
        yield folder
    finally:
        # Lazily: a process that is just ending may have a file open.
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=30)


@contextmanager
def needed_disk(parent: Path) -> Iterator[Path]:
    """Give the same, and skip the test where there is none."""
    with small_disk(parent) as folder:
        if folder is None:
            pytest.skip("no small filesystem can be mounted: that takes root")
        yield folder


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Take all room of the filesystem of a folder and give it back."""
    with DiskFill(str(folder)) as file:
        file.top_up()
        yield
