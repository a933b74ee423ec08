# SPDX-License-Identifier: Apache-2.0
"""GPU memory by process, queried with NVIDIA's own tool; queries never block."""

import os
import subprocess
from collections.abc import Iterable, Mapping

QUERY = ("--query-compute-apps=pid,used_gpu_memory", "--format=csv,noheader,nounits")
# Seconds between queries: each starts a process and talks to the driver, so they are kept rare.
EVERY = 5.0
# Seconds until a query is abandoned, so that queries do not pile up on a driver that hangs.
TIMEOUT = 20.0


class GpuMemory:
    """A periodic query whose answer is read at a later call. An answer is a few lines: it fits into the pipe."""

    def __init__(self, tool: str) -> None:
        self.tool = tool
        self.due = 0.0
        self.query: subprocess.Popen[bytes] | None = None
        self.bytes_of: Mapping[int, int] = {}

    def look(self, now: float) -> Mapping[int, int]:
        """Return bytes by pid from the last answer; empty while there is none, or if the driver does not tell."""
        if self.query is not None and self.query.poll() is not None:
            self.bytes_of = parse(self.answer()) if self.query.returncode == 0 else {}
            self.close()
        if self.query is not None and now >= self.due - EVERY + TIMEOUT:
            self.close()
        if self.query is None and now >= self.due:
            self.due = now + EVERY
            self.query = self.ask()
        return self.bytes_of

    def ask(self) -> "subprocess.Popen[bytes] | None":
        try:
            return subprocess.Popen(
                [self.tool, *QUERY],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
            )
        except OSError:
            return None

    def answer(self) -> list[str]:
        """Return the output so far, even if another process still holds the pipe open."""
        assert self.query is not None and self.query.stdout is not None
        os.set_blocking(self.query.stdout.fileno(), False)
        return (self.query.stdout.read() or b"").decode(errors="replace").splitlines()

    def close(self) -> None:
        """Drop the query, and kill its process if it still runs. One that hangs in the driver is left to the kernel."""
        if self.query is None:
            return
        if self.query.poll() is None:
            self.query.kill()
        if self.query.stdout:
            self.query.stdout.close()
        self.query.poll()
        self.query = None


def parse(lines: Iterable[str]) -> dict[int, int]:
    """Return bytes by pid from lines like `1234, 512` (MiB), one for each GPU of a process."""
    bytes_of: dict[int, int] = {}
    for pid, _, mebibytes in (line.partition(",") for line in lines):
        if pid.strip().isdecimal() and mebibytes.strip().isdecimal():
            bytes_of[int(pid)] = bytes_of.get(int(pid), 0) + (int(mebibytes) << 20)
    return bytes_of
