# SPDX-License-Identifier: Apache-2.0
"""The record of a stream that may be continued: a private file of JSON lines that outlives its proxy.

Who holds the record's lease owns the stream. The kernel releases the lease when its process ends, however it ends, and
gives it to one of those who ask: so a stream is claimed once. Lines are only added, each by one system call, and never
synced: a record has to outlive a process, not the machine. A line that was cut short by the end of its process is left
out.
"""

import errno
import json
import os
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pontil.runtime.errors import PontilError, Unavailable
from pontil.runtime.proxy.siblings import UNBORN, Lease

SUFFIX, WANTED = ".stream", ".wanted"
# Seconds after which a record without a head was left by a process that died while it made it.
UNBORN_SECONDS = 60.0
NAME = re.compile(r"[0-9a-f]{32}", re.ASCII)
# Bytes of all records of a launch, which lie in memory where the run directory does, and of one.
MOST_BYTES = 64 << 20
MOST_RECORD = 8 << 20


class StreamRecord:
    """An open record; its lease is held until `release` or `end`."""

    def __init__(self, name: str, lease: Lease, lines: list[dict[str, Any]], size: int) -> None:
        self.name, self.lease, self.lines, self.size = name, lease, lines, size

    @property
    def head(self) -> dict[str, Any]:
        return self.lines[0]

    @property
    def last(self) -> dict[str, Any]:
        return self.lines[-1]

    def append(self, line: dict[str, Any]) -> None:
        """Add a line, or nothing. Raises OSError."""
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        if (written := os.write(self.lease.descriptor, data)) < len(data):
            # The next line would be lost with the part of this one.
            os.ftruncate(self.lease.descriptor, self.size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size += written

    def touch(self) -> None:
        """Note that its owner lives: the time in which it may be continued begins with the last note."""
        with suppress(OSError):
            os.utime(self.lease.descriptor)

    @property
    def is_wanted(self) -> bool:
        """True if another proxy asks for it."""
        return self.lease.path.with_suffix(WANTED).exists()

    def release(self) -> None:
        """Leave the stream to whoever claims it next."""
        self.lease.path.with_suffix(WANTED).unlink(missing_ok=True)
        self.lease.release()

    def end(self) -> None:
        """Remove the record: nobody can continue the stream any more."""
        self.lease.path.with_suffix(WANTED).unlink(missing_ok=True)
        self.lease.end()


class StreamRecords:
    """The records of all proxies of a launch. Raises PontilError where the folder cannot be used."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.folder, self.clock = folder, clock
        self.size = 0
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise PontilError(f"the folder {folder} of this launch cannot be used: {error.strerror}") from None

    def path_of(self, name: str) -> Path:
        return self.folder / f"{name}{SUFFIX}"

    def begin(self, head: dict[str, Any]) -> StreamRecord:
        """Make the record of a new stream. Raises Unavailable where there is no room for it."""
        name = secrets.token_hex(16)
        size = sum(len(part) for part in head.values() if isinstance(part, str)) + 8 * len(head["prompt"])
        if size > MOST_RECORD or self.size + size > MOST_BYTES:
            raise Unavailable("there is no room to keep this stream: ask for it without pontil-resume, or later", 10.0)
        try:
            made = self.owned(name, head)
        except OSError as error:
            raise Unavailable(
                f"this stream cannot be kept ({error.strerror}): ask for it without pontil-resume"
            ) from None
        self.size += made.size
        return made

    def owned(self, name: str, head: dict[str, Any]) -> StreamRecord:
        """Make a record that nobody finds before it is locked and has its head. Raises OSError."""
        lease = Lease.create(self.path_of(name), os.O_APPEND)
        made = StreamRecord(name, lease, [head], 0)
        try:
            made.append(head)
            lease.show()
        except OSError:
            made.end()
            raise
        return made

    def claim(self, name: str) -> StreamRecord | None:
        """Take over a stream that nobody owns; return None while somebody does. Raises KeyError if there is none of
        that name."""
        try:
            lease = Lease.take(self.path_of(name), os.O_APPEND)
        except OSError:
            raise KeyError(name) from None
        if lease is None:
            if not self.path_of(name).exists():
                raise KeyError(name)
            return None
        lines, size = read_lines(lease.descriptor)
        if not lines:
            lease.end()
            raise KeyError(name)
        # A line after one that was cut short would be lost with it.
        about = os.fstat(lease.descriptor)
        if about.st_size != size:
            os.ftruncate(lease.descriptor, size)
            # A look at a record is no sign of life.
            os.utime(lease.descriptor, ns=(about.st_atime_ns, about.st_mtime_ns))
        self.path_of(name).with_suffix(WANTED).unlink(missing_ok=True)
        return StreamRecord(name, lease, lines, size)

    def head_of(self, name: str) -> dict[str, Any]:
        """Return the head of a stream, whoever owns it. Raises KeyError if there is none of that name."""
        try:
            with self.path_of(name).open("rb") as file:
                found = parsed(file.readline(MOST_RECORD + (1 << 20)))
        except OSError:
            raise KeyError(name) from None
        if found is None:
            raise KeyError(name)
        return found

    def ask_for(self, name: str) -> None:
        """Ask the proxy that owns a stream to let it go."""
        with suppress(OSError):
            self.path_of(name).with_suffix(WANTED).touch(mode=0o600)

    def names(self) -> list[str]:
        return [path.stem for path in self.folder.glob(f"*{SUFFIX}") if NAME.fullmatch(path.stem)]

    def requests(self) -> list[str]:
        """Return the ids of the requests of all streams."""
        found = []
        for name in self.names():
            with suppress(KeyError):
                found.append(str(self.head_of(name)["request"]))
        return found

    def unowned(self, known: set[str], window: float) -> list[StreamRecord]:
        """Take over every stream that nobody owns, but for those `known` whose time is not over; the caller releases or
        ends each. Note the size of all, and forget the known ones that are gone."""
        self.remove_unborn()
        found, size, names = [], 0, self.names()
        known.intersection_update(names)
        for name in names:
            with suppress(KeyError, OSError):
                about = self.path_of(name).stat()
                size += about.st_size
                if name in known and self.clock() - about.st_mtime <= window:
                    continue
                record = self.claim(name)
                if record is not None:
                    found.append(record)
        self.size = size
        return found

    def remove_unborn(self) -> None:
        for path in self.folder.glob(f"*{UNBORN}"):
            with suppress(OSError):
                old = self.clock() - path.stat().st_mtime > UNBORN_SECONDS
                lease = Lease.take(path) if old else None
                if lease is not None:
                    lease.end()

    def age(self, record: StreamRecord) -> float:
        """Return the seconds since its owner was last known to live."""
        return self.clock() - os.fstat(record.lease.descriptor).st_mtime


def read_lines(descriptor: int) -> tuple[list[dict[str, Any]], int]:
    """Return the whole lines of a record, up to one that is damaged, and their length in bytes."""
    lines: list[dict[str, Any]] = []
    whole = 0
    size = os.fstat(descriptor).st_size
    for line in os.pread(descriptor, size, 0).splitlines(keepends=True):
        found = parsed(line)
        if found is None:
            break
        lines.append(found)
        whole += len(line)
    return lines, whole


def parsed(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
