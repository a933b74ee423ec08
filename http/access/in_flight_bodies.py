# SPDX-License-Identifier: Apache-2.0
"""Bodies being read, recorded in a file that outlives the process. A body that was in flight when a proxy crashed is
refused from the same address for a while."""

import hashlib
import logging
import os
import struct
import time
from collections.abc import Callable
from functools import wraps
from itertools import count
from pathlib import Path

from sanic import HTTPResponse, Request

from pontil.http.access.access import peer_of
from pontil.http.access.endpoint import Handler
from pontil.runtime.errors import RequestError

LOG = logging.getLogger("pontil.http")
REFUSED_SECONDS = 600.0
CODE = "request_refused_after_a_crash"
# A slot: the end of the refusal by the machine's monotonic clock (0 while in flight), and the digest (never 0).
SLOT = struct.Struct("<d24s")
SLOTS = 1024
EMPTY = bytes(SLOT.size)
NOTHING = bytes(24)


class InFlightBodies:
    """A file of fixed slots, one per body, each written and cleared by one system call and never synced: it has to
    outlive a process, not the machine. A crash leaves the slot set. A slot is free, in flight or refused. A body for
    which no slot is free is not recorded; without a file (`path` None, or one that cannot be opened) none is."""

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.path = clock, path
        self.refused: dict[bytes, float] = {}
        self.file: int | None = None
        self.held: dict[int, int] = {}
        self.names = count()
        if path is not None:
            self.open(path)
        self.free: list[int] = list(range(SLOTS - 1, len(self.refused) - 1, -1)) if self.file is not None else []

    def open(self, path: Path) -> None:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            self.refused = left_over(os.pread(file, SLOTS * SLOT.size, 0), self.clock())
            slots = [SLOT.pack(until, digest) for digest, until in self.refused.items()]
            os.pwrite(file, b"".join([*slots, *[EMPTY] * (SLOTS - len(slots))]), 0)
        except OSError as error:
            LOG.warning("%s cannot be written: a body that ends this process may be sent again (%s)", path, error)
            return
        self.file = file
        if self.refused:
            says = "%d bodies were being read when the last proxy died: each is refused to its sender for up to %.0f s"
            LOG.warning(says, len(self.refused), REFUSED_SECONDS)

    def noting(self, handler: Handler) -> Handler:
        """Wrap the handler of a body, which is in flight from `note` until `let_go` or the handler's end."""

        @wraps(handler)
        async def noted(request: Request) -> HTTPResponse | None:
            request.ctx.in_flight = None
            try:
                return await handler(request)
            finally:
                self.let_go(request)

        return noted

    def note(self, request: Request, body: bytes) -> None:
        """Record that the body is complete and about to be read. Raises RequestError for a refused one."""
        request.ctx.in_flight = self.take(body, peer_of(request))

    def let_go(self, request: Request) -> None:
        """Clear the record of a body that has been read."""
        if request.ctx.in_flight is not None:
            self.clear(request.ctx.in_flight)

    def take(self, body: bytes, peer: str) -> int:
        """Claim a slot and return the id by which to clear it. Raises RequestError for a refused body."""
        digest = digest_of(body, peer)
        left = self.refused.get(digest, 0.0) - self.clock()
        if left > 0:
            says = f"this request was being read when the server's last process died: change it, or wait {left:.0f} s"
            raise RequestError(says, code=CODE)
        name = next(self.names)
        if self.free and self.write(self.free[-1], SLOT.pack(0.0, digest)):
            self.held[name] = self.free.pop()
        return name

    def clear(self, name: int) -> None:
        """Free the slot; may be called repeatedly."""
        slot = self.held.pop(name, None)
        if slot is not None and self.write(slot, EMPTY):
            self.free.append(slot)

    def write(self, slot: int, data: bytes) -> bool:
        """Return whether the slot could be written. A slot that could not be cleared stays as it is."""
        if self.file is None:
            return False
        try:
            return os.pwrite(self.file, data, slot * SLOT.size) == SLOT.size
        except OSError:
            return False

    def close(self) -> None:
        """Clear all slots: after an orderly shutdown no handler runs."""
        for name in list(self.held):
            self.clear(name)
        if self.file is not None:
            os.close(self.file)
        self.file = None


def left_over(data: bytes, now: float) -> dict[bytes, float]:
    """Return the digests that another process left, with the ends of their refusals; at most half as many as there are
    slots."""
    found: dict[bytes, float] = {}
    for until, digest in SLOT.iter_unpack(data[: len(data) - len(data) % SLOT.size]):
        until = until or now + REFUSED_SECONDS
        if digest != NOTHING and now < until <= now + REFUSED_SECONDS:
            found[digest] = max(until, found.get(digest, 0.0))
    return dict(sorted(found.items(), key=lambda one: one[1], reverse=True)[: SLOTS // 2])


def digest_of(body: bytes, peer: str) -> bytes:
    """Return a digest from which the sender cannot be identified."""
    key = peer.encode()[-hashlib.blake2b.MAX_KEY_SIZE :]
    return hashlib.blake2b(body, digest_size=len(NOTHING), key=key).digest()
