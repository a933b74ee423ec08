# SPDX-License-Identifier: Apache-2.0
"""The record of a stream that may be continued: a private file that outlives its proxy.

Its first line is JSON and short, but for the lengths of the prompt and the body, which follow it as they are: neither
is parsed to find out whose the record is, and little is when it is read whole. All further lines are JSON.

Who holds the record's lease owns the stream. The kernel releases the lease when its process ends, however it ends, and
gives it to one of those who ask: so a stream is claimed once. Lines are only added, each by one system call, and never
synced: a record has to outlive a process, not the machine. A line that was cut short by the end of its process is left
out. The time of its file is the machine's monotonic clock, so that no jump of the other one ends its window.
"""

import errno
import json
import os
import re
import secrets
import time
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pontil.runtime.errors import PontilError, Unavailable
from pontil.runtime.foundation.file_age import stamp
from pontil.runtime.foundation.line_pipe import json_object
from pontil.runtime.proxy.requests.shared_room import SharedRoom
from pontil.runtime.proxy.requests.ticket import NO_KEY
from pontil.runtime.proxy.siblings.leases import UNBORN, Lease, stems

SUFFIX, WANTED = ".stream", ".wanted"
# Seconds after which a record without a head was left by a process that died while it made it.
UNBORN_SECONDS = 60.0
# The type of an id in a record, which no other machine reads.
IDS = "I"
ID_BYTES = array(IDS).itemsize
NAME = re.compile(r"[0-9a-f]{32}", re.ASCII)
# Bytes of all records of a launch, which lie in memory where the run directory does and which callers share, and of
# the prompt and body of one.
MOST_BYTES = 64 << 20
MOST_RECORD = 8 << 20


class StreamRecord:
    """An open record; its lease is held until `release` or `end`. It `is_unsettled` if it ended and its proxy died
    before the row was closed."""

    def __init__(self, name: str, lease: Lease, lines: list[dict[str, Any]], size: int) -> None:
        self.name, self.lease, self.lines, self.size = name, lease, lines, size
        self.is_unsettled = False

    @property
    def head(self) -> dict[str, Any]:
        return self.lines[0]

    @property
    def last(self) -> dict[str, Any]:
        return self.lines[-1]

    def append(self, line: dict[str, Any]) -> None:
        """Add a line, or nothing. Raises OSError."""
        self.write(json_line(line))

    def write(self, data: bytes) -> None:
        """Add whole lines, or nothing. Raises OSError."""
        if (byte_count := os.write(self.lease.descriptor, data)) < len(data):
            # The next line would be lost with the part of this one.
            os.ftruncate(self.lease.descriptor, self.size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size += byte_count
        self.touch()

    def touch(self) -> None:
        """Note that its owner lives: the time in which it may be continued begins with the last note."""
        with suppress(OSError):
            stamp(self.lease.descriptor)

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


@dataclass(slots=True)
class Sweep:
    """The findings among the streams that nobody owns. `orphans` are the requests and tokens of each caller that may
    still be continued; `settled` the names of streams that ended and have their rows. The caller holds the records:
    those whose time is over, `left` by proxies that live or `lost` with theirs, and those that ended and have no
    closed row."""

    orphans: dict[str, tuple[int, int]] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    left: list[StreamRecord] = field(default_factory=list)
    lost: list[StreamRecord] = field(default_factory=list)
    unsettled: list[StreamRecord] = field(default_factory=list)

    def add_orphan(self, about: Mapping[str, Any]) -> None:
        """Count a stream, of which this is the first line of its record."""
        requests, tokens = self.orphans.get(about["caller"], (0, 0))
        most = about["prompt"] + about["params"]["n"] * about["params"]["max_tokens"]
        self.orphans[about["caller"]] = requests + 1, tokens + most


class StreamRecords:
    """The records of all proxies of a launch. Raises PontilError where the folder cannot be used."""

    def __init__(self, folder: Path, clock: Callable[[], float] = lambda: time.monotonic()) -> None:
        self.folder, self.clock = folder, clock
        # As of the last look at the folder, and what was begun here since.
        self.room = SharedRoom(MOST_BYTES)
        # The first lines that were read.
        self.abouts: dict[str, dict[str, Any]] = {}
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise PontilError(f"the folder {folder} of this launch cannot be used: {error.strerror}") from None

    def path_of(self, name: str) -> Path:
        return self.folder / f"{name}{SUFFIX}"

    def begin(self, head: dict[str, Any]) -> StreamRecord:
        """Make the record of a new stream. Raises Unavailable where there is no room for it, or none for its caller."""
        name, caller = secrets.token_hex(16), str(head["caller"])
        size = len(head.get("body", b"")) + ID_BYTES * len(head["prompt"])
        if size > MOST_RECORD or not self.room.fits(caller, size):
            held_mib = self.room.held[caller] / (1 << 20)
            whose = f", of which your API key has {held_mib:.1f} MiB" if held_mib >= 0.1 and caller != NO_KEY else ""
            says = f"there is no room to keep this stream{whose}: ask for it without pontil-resume, or later"
            raise Unavailable(says, 10.0)
        try:
            record = self.owned(name, head)
        except OSError as error:
            raise Unavailable(
                f"this stream cannot be kept ({error.strerror}): ask for it without pontil-resume"
            ) from None
        self.room.hold(caller, record.size)
        return record

    def owned(self, name: str, head: dict[str, Any]) -> StreamRecord:
        """Make a record that nobody finds before it is locked and has its head. Raises OSError."""
        lease = Lease.create(self.path_of(name), os.O_APPEND)
        record = StreamRecord(name, lease, [head], 0)
        try:
            record.write(packed(head))
            lease.show()
        except OSError:
            record.end()
            raise
        return record

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
        # A look at a record is no sign of life. But if its owner died before it could set the time, or had no room for
        # a line, the time is that of the other clock: its window begins now.
        last = min(about.st_mtime_ns, int(self.clock() * 1e9))
        os.utime(lease.descriptor, ns=(last, last))
        self.path_of(name).with_suffix(WANTED).unlink(missing_ok=True)
        return StreamRecord(name, lease, lines, size)

    def about(self, name: str) -> dict[str, Any]:
        """Return the first line of a stream, whoever owns it: its head, with the lengths of prompt and body. Raises
        KeyError if there is none of that name."""
        try:
            with self.path_of(name).open("rb") as file:
                head = self.abouts.get(name) or parsed(file.readline(MOST_RECORD))
        except OSError:
            raise KeyError(name) from None
        if head is None:
            raise KeyError(name)
        self.abouts[name] = head
        return head

    def is_free(self, name: str) -> bool:
        """Return whether nobody owns a stream. Raises OSError."""
        lease = Lease.take(self.path_of(name))
        if lease is not None:
            lease.release()
        return lease is not None

    def ask_for(self, name: str) -> None:
        """Ask the proxy that owns a stream to let it go."""
        with suppress(OSError):
            self.path_of(name).with_suffix(WANTED).touch(mode=0o600)

    def names(self) -> list[str]:
        return [name for name in stems(self.folder, SUFFIX) if NAME.fullmatch(name)]

    def requests(self) -> list[str]:
        """Return the ids of the requests of all streams that can be continued: none of another version's."""
        request_ids = []
        for name in self.names():
            with suppress(KeyError):
                about = self.about(name)
                if lengths(about) is not None:
                    request_ids.append(str(about["request"]))
        return request_ids

    def unowned(self, known: set[str], window: float, orphans: dict[str, int] | None = None) -> list[StreamRecord]:
        """Take over every stream that nobody owns, but for those `known` whose time is not over, and for `orphans`
        which are still as large as they were; the caller releases or ends each. Note the size of all, and forget the
        known ones and the orphans that are gone or have an owner."""
        self.remove_unborn()
        orphans = {} if orphans is None else orphans
        records, room, names = [], SharedRoom(MOST_BYTES), self.names()
        gone_names = (self.abouts.keys() | orphans.keys()).difference(names)
        known.intersection_update(names)
        for name in gone_names:
            self.abouts.pop(name, None)
            orphans.pop(name, None)
        for name in names:
            with suppress(KeyError, OSError):
                file = self.path_of(name).stat()
                room.hold(str((self.abouts.get(name) or self.about(name))["caller"]), file.st_size)
                # A time that is yet to come is the other clock's, as `claim` says.
                waits = 0.0 <= self.clock() - file.st_mtime <= window
                if waits and (name in known or (orphans.get(name) == file.st_size and self.is_free(name))):
                    continue
                orphans.pop(name, None)
                record = self.claim(name)
                if record is not None:
                    records.append(record)
        self.room = room
        return records

    def remove_unborn(self) -> None:
        for stem in stems(self.folder, UNBORN):
            path = self.folder / f"{stem}{UNBORN}"
            with suppress(OSError):
                # Nobody has set its time yet.
                old = time.time() - path.stat().st_mtime > UNBORN_SECONDS
                lease = Lease.take(path) if old else None
                if lease is not None:
                    lease.end()

    def age(self, record: StreamRecord) -> float:
        """Return the seconds since its owner was last known to live."""
        return self.clock() - os.fstat(record.lease.descriptor).st_mtime


def read_lines(descriptor: int) -> tuple[list[dict[str, Any]], int]:
    """Return the whole lines of a record, up to one that is damaged, and their length in bytes."""
    data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    head, whole = unpacked(data)
    if head is None:
        return [], 0
    lines = [head]
    for line in data[whole:].splitlines(keepends=True):
        parsed_line = parsed(line)
        if parsed_line is None:
            break
        lines.append(parsed_line)
        whole += len(line)
    return lines, whole


def json_line(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def packed(head: Mapping[str, Any]) -> bytes:
    """Return a head as it begins a record. Its `prompt` is a list of ids; its `body`, if it has one, is bytes."""
    about = {**head, "prompt": len(head["prompt"])}
    if "body" in head:
        about["body"] = len(head["body"])
    return b"".join([json_line(about), array(IDS, head["prompt"]).tobytes(), head.get("body", b""), b"\n"])


def unpacked(data: bytes) -> tuple[dict[str, Any] | None, int]:
    """Return the head of a record and its length in bytes; None if it is damaged."""
    start = data.find(b"\n") + 1
    head = parsed(data[:start])
    sizes = None if head is None else lengths(head)
    if head is None or sizes is None:
        return None, 0
    ids, size = sizes
    middle = start + ID_BYTES * ids
    end = middle + size
    if data[end : end + 1] != b"\n":
        return None, 0
    head["prompt"] = array(IDS, data[start:middle]).tolist()
    if "body" in head:
        head["body"] = data[middle:end]
    return head, end + 1


def lengths(about: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return how many ids and bytes follow the first line of a record; None if it does not say so."""
    ids, size = about.get("prompt"), about.get("body", 0)
    return (ids, size) if isinstance(ids, int) and isinstance(size, int) and ids >= 0 and size >= 0 else None


def parsed(line: bytes) -> dict[str, Any] | None:
    return json_object(line) if line.endswith(b"\n") else None
