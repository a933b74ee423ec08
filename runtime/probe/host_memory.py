# SPDX-License-Identifier: Apache-2.0
"""The memory that this process may still take: of the machine, and of the control groups that it is in.

torch is not imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

MEMBERSHIP, MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
# (limit, used) in either version of control groups, and the part of `used` that the kernel reclaims when it is needed.
FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
CACHED = ("inactive_file", "active_file")
HIERARCHICAL = "total_"
# Version 1 states a number of this size where there is no limit.
NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """The free memory. `limit` is that of the control group that leaves the least; None: the machine's own memory."""

    bytes: int
    limit: int | None = None

    @property
    def where(self) -> str:
        """The limiting control group or machine, in words."""
        return "this machine" if self.limit is None else f"its control group (limit {gibibytes(self.limit)})"


def host_room(membership: Path = MEMBERSHIP, mount: Path = MOUNT) -> FreeMemory:
    """Return the memory left now. Files in the page cache count as free: the kernel drops them when memory is
    needed."""
    groups = [FreeMemory(spare, limit) for folder in folders(membership, mount) for limit, spare in limits(folder)]
    return min([FreeMemory(psutil.virtual_memory().available), *groups], key=lambda room: room.bytes)


def folders(membership: Path, mount: Path) -> Iterator[Path]:
    """Yield the folders of this process's control groups for memory and of all above them, as far as they are
    visible."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers in ("", "memory"):
            root = mount / controllers
            group = root / path.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if root in (folder, *folder.parents))


def limits(folder: Path) -> Iterator[tuple[int, int]]:
    """Yield (limit, bytes left of it) of one control group; nothing where there is no limit."""
    for limit_name, used_name in FILES:
        try:
            limit, used_bytes = (folder / limit_name).read_text().strip(), int((folder / used_name).read_text())
        except (OSError, ValueError):
            continue
        if limit.isdigit() and int(limit) < NO_LIMIT:
            yield int(limit), max(0, int(limit) - used_bytes + min(used_bytes, cached(folder)))


def cached(folder: Path) -> int:
    """Return the bytes of files that are in memory only because there was room, including groups below this one."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    counters = {name: int(value) for name, _, value in (line.partition(" ") for line in lines) if value.isdigit()}
    return sum(counters.get(HIERARCHICAL + name, counters.get(name, 0)) for name in CACHED)


def gibibytes(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"
