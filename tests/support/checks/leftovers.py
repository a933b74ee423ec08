# SPDX-License-Identifier: Apache-2.0
"""The oracle for leftovers: a launch must leave no process, port, socket or memory behind, however it ended."""

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pontil.launcher.control.run_directory import RunDirectory, usual_socket
from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.host.ports import usable_port
from pontil.launcher.tools.chaos.launch_rest import unused_segments


def processes() -> Iterator[Path]:
    return (path for path in Path("/proc").iterdir() if path.name.isdigit())


def pools_of(process: Path) -> set[str]:
    """Return the inodes of the anonymous shared memory (memfd) that a process has mapped; empty for one that has
    ended."""
    with suppress(OSError):
        return {line.split()[4] for line in (process / "maps").read_text().splitlines() if "/memfd:" in line}
    return set()


@dataclass
class Leftovers:
    """Traces of launches with these `variables`: a mark that all their descendants inherit, and a run directory of
    their own below `folder`."""

    folder: Path
    mark: str = field(default_factory=lambda: secrets.token_hex(16))
    pools: set[str] = field(default_factory=set)
    segments: frozenset[str] = field(default_factory=unused_segments)

    def __post_init__(self) -> None:
        self.folder.mkdir(mode=0o700)

    @property
    def variables(self) -> dict[str, str]:
        return {"XDG_RUNTIME_DIR": str(self.folder), "LAUNCH_OF_A_TEST": self.mark}

    @property
    def base(self) -> Path:
        return self.folder / "pontil"

    def marked(self) -> list[Path]:
        """Return every process that descends from such a launch."""
        found = []
        for process in processes():
            with suppress(OSError):
                if self.mark.encode() in (process / "environ").read_bytes():
                    found.append(process)
        return found

    def note(self) -> None:
        """Remember the memory that is mapped now: it has no name by which to find it later."""
        for process in self.marked():
            self.pools |= pools_of(process)

    def left(self, port: int) -> list[str]:
        """Return descriptions of the leftovers; a directory that a killed launcher could not remove does not count."""
        found = [f"process {process.name}: {command_of(process)}" for process in self.marked()]
        try:
            usable_port("--port", "127.0.0.1", port)
        except LaunchError as error:
            found.append(error.message)
        bound = Path("/proc/net/unix").read_text().splitlines()
        found += [f"socket {line.split()[-1]}" for line in bound if str(self.folder) in line]
        found += [f"memory {inode}" for process in processes() for inode in pools_of(process) & self.pools]
        return found + [f"segment {name}" for name in unused_segments() - self.segments]

    def at_last(self, port: int, timeout: float) -> list[str]:
        """Wait until nothing is left or the time is up, since killed processes may end slowly; return what is left."""
        pause, deadline = threading.Event(), time.monotonic() + timeout
        while (found := self.left(port)) and time.monotonic() < deadline:
            pause.wait(0.05)
        return found

    def after_the_next_start(self) -> list[str]:
        """Return what the next launcher finds in the folder of run directories beside its own."""
        directory = RunDirectory(self.base)
        directory.create()
        found = {path.name for path in self.base.iterdir()} - {".lock", directory.path.name}
        usual = usual_socket(self.base)
        if usual.is_symlink() and usual.readlink().parent.name in found:
            found.remove(usual.name)  # belongs to a launch whose directory is still there
        directory.remove()
        return sorted(found)


def command_of(process: Path) -> str:
    with suppress(OSError):
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return "(ended)"
