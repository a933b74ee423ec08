# SPDX-License-Identifier: Apache-2.0
"""A small filesystem in memory, where this user may mount one."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pontil.launcher.tools.chaos.disk_fill import DiskFill

MEBIBYTES = 16
# Mounts, and unmounts when its input ends: also at the end of a test that was killed, which does nothing any more.
# Lazily, since a process that is just ending may have a file open.
KEEPER = """
mount -t tmpfs -o "size=$1m" none "$2" || exit 1
echo mounted
cat >/dev/null
umount --lazy "$2"
"""


@contextmanager
def small_disk(parent: Path) -> Iterator[Path | None]:
    """Give the folder of such a filesystem below `parent`, None where none can be mounted: that takes root."""
    folder = parent / "small-disk"
    folder.mkdir()
    command = ["sh", "-c", KEEPER, "sh", str(MEBIBYTES), str(folder)]
    # In a session of its own, so that what ends the tests by their group leaves it.
    keeper = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    with keeper:
        assert keeper.stdin is not None and keeper.stdout is not None
        is_mounted = keeper.stdout.readline() == b"mounted\n"
        try:
            yield folder if is_mounted else None
        finally:
            keeper.stdin.close()
            code = keeper.wait(30)
            assert code == 0 or not is_mounted, f"{folder} cannot be unmounted"


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
