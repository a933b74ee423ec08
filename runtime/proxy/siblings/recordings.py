# SPDX-License-Identifier: Apache-2.0
"""A record of all proxies' requests, made by the one whose reader listens, by files in the launch's folder.

That proxy says so in a file whose lease it holds, so that its end is seen whatever ends it. Each other one leaves what
it has recorded in a file of its own, of which there is one at a time: until it is taken, more waits in memory.
"""

import asyncio
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from pontil.runtime.foundation.file_age import age, stamp
from pontil.runtime.proxy.siblings.leases import Lease, stems

SESSION, LINES, FRESH = ".recording", ".lines", ".new"
# Seconds in which all others hear of a record that begins: somewhat longer than from one look to the next.
HEARD_WITHIN = 0.75


class RequestRecording(Protocol):
    """The part of a proxy that records requests."""

    def follow(self, wish: bytes, seconds: float) -> None:
        """Record for another proxy, which began so many seconds ago, as its `wish` says."""

    def part(self) -> bytes:
        """Return what was recorded for it and not told yet."""

    def lose(self, part: bytes) -> None:
        """Note that a part cannot be told."""

    def hear(self, part: bytes) -> None:
        """Take a part that another proxy has recorded for this one."""

    def leave(self) -> None:
        """Record no more for another one."""


class RecordingExchange:
    """The records of the launch as the proxy of this name sees them. Its `recorder` is set once it has one."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.recorder: RequestRecording | None = None
        self.own: Lease | None = None
        self.followed: str | None = None

    def begin(self, wish: bytes) -> bool:
        """Have all proxies record for this one. Return False while another record is made. Raises OSError."""
        lease = Lease.create(self.folder / f"{self.name}-{secrets.token_hex(8)}{SESSION}")
        try:
            os.write(lease.descriptor, wish)
            stamp(lease.descriptor)
            lease.show()
        except OSError:
            lease.end()
            raise
        # Of two that begin at once neither does.
        if any(self.lives(other) for other in stems(self.folder, SESSION) if other != lease.path.stem):
            lease.end()
            return False
        self.own = lease
        return True

    def end(self) -> None:
        """Have the others record no more for this one, which may record for another one again."""
        own, self.own, self.followed = self.own, None, None
        if own is not None:
            own.end()
            self.clear(own.path.stem)

    def lives(self, stem: str) -> bool:
        """Return whether the proxy of a record still makes it; remove what another one left."""
        with suppress(FileNotFoundError):
            lease = Lease.take(self.folder / f"{stem}{SESSION}")
            if lease is None:
                return True
            lease.end()
            self.clear(stem)
        return False

    def clear(self, stem: str) -> None:
        for path in self.parts(stem):
            path.unlink(missing_ok=True)

    def parts(self, stem: str) -> list[Path]:
        with suppress(FileNotFoundError):
            names = sorted(os.listdir(self.folder))
            return [self.folder / name for name in names if name.startswith(f"{stem}.") and name.endswith(LINES)]
        return []

    async def look(self) -> None:
        """Take what the others have left for a record of this proxy, or leave them what was recorded here."""
        if self.recorder is None:
            return
        if self.own is not None:
            for part in await asyncio.to_thread(lambda stem: list(self.taken(stem)), self.own.path.stem):
                self.recorder.hear(part)
            return
        others = [stem for stem in sorted(stems(self.folder, SESSION)) if not stem.startswith(f"{self.name}-")]
        if not others and self.followed is None:
            return
        living = [stem for stem in others if await asyncio.to_thread(self.lives, stem)]
        if self.followed not in living:
            self.stop_following()
        if living and self.followed is None:
            with suppress(OSError):
                self.follow(living[0])
        elif self.followed is not None:
            await self.leave_part(self.followed, self.recorder)

    def taken(self, stem: str) -> Iterator[bytes]:
        for path in self.parts(stem):
            with suppress(OSError):
                yield path.read_bytes()
                path.unlink()

    def follow(self, stem: str) -> None:
        assert self.recorder is not None
        path = self.folder / f"{stem}{SESSION}"
        self.recorder.follow(path.read_bytes(), age(path))
        self.followed = stem

    def stop_following(self) -> None:
        if self.followed is not None and self.recorder is not None:
            self.part_path(self.followed).unlink(missing_ok=True)
            self.recorder.leave()
        self.followed = None

    def part_path(self, stem: str) -> Path:
        return self.folder / f"{stem}.{self.name}{LINES}"

    async def leave_part(self, stem: str, recorder: RequestRecording) -> None:
        """Leave what was recorded, once the part before it was taken."""
        path = self.part_path(stem)
        if not path.exists() and (part := recorder.part()) and not await asyncio.to_thread(written, path, part):
            recorder.lose(part)

    def close(self) -> None:
        """Leave what was recorded here, if there is room for it, and end a record of this proxy."""
        if self.followed is not None and self.recorder is not None:
            path = self.part_path(self.followed)
            if not path.exists() and (part := self.recorder.part()):
                written(path, part)
        self.end()


def written(path: Path, data: bytes) -> bool:
    """Write a file that only its owner can read, and which is there whole or not at all. Return whether it is."""
    fresh = path.with_suffix(FRESH)
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
        fresh.rename(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        return False
    return True
