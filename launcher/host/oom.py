# SPDX-License-Identifier: Apache-2.0
"""Detection of OOM kills: the kernel counts them, for a control group or for the whole system."""

from collections import deque
from pathlib import Path

# Seconds after which a counted kill no longer explains an exit: it killed another process.
RECENT = 10.0


class OomWatch:
    """The kernel's OOM counter: each counted kill explains one exit by SIGKILL soon after it.

    The kernel counts before it kills, so the count is there when the exit is seen. A regular look keeps kills of other
    processes in the same control group from explaining exits much later.
    """

    def __init__(self, counter: Path) -> None:
        self.counter = counter
        self.seen = count_of(counter)
        self.unexplained: deque[float] = deque()

    def look(self, now: float) -> None:
        count = count_of(self.counter)
        self.unexplained.extend([now] * (count - self.seen))
        self.seen = count
        while self.unexplained and now - self.unexplained[0] > RECENT:
            self.unexplained.popleft()

    def explains(self, now: float) -> bool:
        """Return whether an unused kill explains an exit that was just seen; the kill is then used up."""
        self.look(now)
        is_explained = bool(self.unexplained)
        if is_explained:
            self.unexplained.popleft()
        return is_explained


def count_of(counter: Path) -> int:
    """Return the kills so far, from any of the kernel's files that have a line `oom_kill N`; 0 if none can be read."""
    try:
        fields = [line.split() for line in counter.read_text().splitlines()]
    except OSError:
        return 0
    return next((int(words[1]) for words in fields if words[:1] == ["oom_kill"] and len(words) == 2), 0)


def kill_counter(
    membership: Path = Path("/proc/self/cgroup"),
    mount: Path = Path("/sys/fs/cgroup"),
    system: Path = Path("/proc/vmstat"),
) -> Path:
    """Return the file with the narrowest count: this process's control group (its children are in the same one), in
    either version's file, else the whole system's."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return system
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers not in ("", "memory"):
            continue
        root, name = (mount / "memory", "memory.oom_control") if controllers else (mount, "memory.events")
        # A container's own group may be mounted as the root, whatever its path is called outside.
        for counter in (root / path.lstrip("/") / name, root / name):
            if counter.is_file():
                return counter
    return system
