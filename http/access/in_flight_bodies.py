# SPDX-License-Identifier: Apache-2.0
"""Bodies being read, recorded in a file that outlives the process.

One death proves nothing against a body that was in flight: a process is also killed from outside, and most bodies are
there by chance. So it is read once more, and suspected until then; one that was in flight at two deaths, without having
been read in between, is refused from the same address for a while.
"""

import hashlib
import logging
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from itertools import count
from pathlib import Path

from sanic import HTTPResponse, Request

from pontil.http.access.access import peer_of
from pontil.http.access.endpoint import Handler
from pontil.runtime.errors import RequestError

LOG = logging.getLogger("pontil.http")
REFUSED_SECONDS = 600.0
CODE = "request_refused_after_a_crash"
# Deaths at which a body was in flight, after which it is refused.
MOST_DEATHS = 2
# A slot: when the record is forgotten, by the machine's monotonic clock (0 while in flight), the deaths before, and the
# digest (never 0).
SLOT = struct.Struct("<dI20s")
SLOTS = 1024
EMPTY = bytes(SLOT.size)
NOTHING = bytes(20)


@dataclass(frozen=True, slots=True)
class SuspectBody:
    """A body that was in flight at so many deaths; it is forgotten at the time `until`."""

    until: float
    deaths: int

    @property
    def is_refused(self) -> bool:
        return self.deaths >= MOST_DEATHS


class InFlightBodies:
    """A file of fixed slots, one per body, each written and cleared by one system call and never synced: it has to
    outlive a process, not the machine. A crash leaves the slot set. A slot is free, in flight or a suspect's. A body
    for which no slot is free is not recorded; without a file (`path` None, or one that cannot be opened) none is."""

    def __init__(self, path: Path | None, clock: Callable[[], float] = lambda: time.monotonic()) -> None:
        self.clock, self.path = clock, path
        self.suspects: dict[bytes, SuspectBody] = {}
        # The slots of suspects, and those of bodies in flight with their digests.
        self.places: dict[bytes, int] = {}
        self.file: int | None = None
        self.held: dict[int, tuple[int, bytes]] = {}
        self.names = count()
        if path is not None:
            self.open(path)
        self.free: list[int] = list(range(SLOTS - 1, len(self.suspects) - 1, -1)) if self.file is not None else []

    def open(self, path: Path) -> None:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            self.suspects = left_over(os.pread(file, SLOTS * SLOT.size, 0), self.clock())
            self.places = {digest: slot for slot, digest in enumerate(self.suspects)}
            slots = [SLOT.pack(suspect.until, suspect.deaths, digest) for digest, suspect in self.suspects.items()]
            os.pwrite(file, b"".join([*slots, *[EMPTY] * (SLOTS - len(slots))]), 0)
        except OSError as error:
            LOG.warning("%s cannot be written: a body that ends this process may be sent again (%s)", path, error)
            return
        self.file = file
        if refused_bodies := sum(suspect.is_refused for suspect in self.suspects.values()):
            says = "%d bodies were being read when the last two proxies died: they are refused for up to %.0f s"
            LOG.warning(says, refused_bodies, REFUSED_SECONDS)

    def recorded(self, handler: Handler) -> Handler:
        """Wrap the handler of a body, which is recorded from `note` until it is `understood` or the handler ends."""

        @wraps(handler)
        async def handle(request: Request, **places: str) -> HTTPResponse | None:
            request.ctx.understood = nothing
            try:
                return await handler(request, **places)
            finally:
                request.ctx.understood()

        return handle

    def note(self, request: Request, body: bytes) -> None:
        """Record that the body is complete and about to be read. Raises RequestError for a refused one."""
        request.ctx.understood = partial(self.clear, self.take(body, peer_of(request)))

    def take(self, body: bytes, peer: str) -> int:
        """Claim a slot and return the id by which to clear it. Raises RequestError for a refused body."""
        digest = digest_of(body, peer)
        suspect = self.suspects.get(digest)
        if suspect is not None and suspect.is_refused and (seconds_left := suspect.until - self.clock()) > 0:
            says = f"the server died twice while it was reading this request: change it, or wait {seconds_left:.0f} s"
            raise RequestError(says, code=CODE)
        name = next(self.names)
        if self.free and self.write(self.free[-1], SLOT.pack(0.0, 0, digest)):
            self.held[name] = self.free.pop(), digest
        return name

    def clear(self, name: int) -> None:
        """Free the slot of a body that was read without harm, and suspect it no more; may be called repeatedly."""
        if name not in self.held:
            return
        slot, digest = self.held.pop(name)
        self.suspects.pop(digest, None)
        for freed_slot in (slot, self.places.pop(digest, None)):
            if freed_slot is not None and self.write(freed_slot, EMPTY):
                self.free.append(freed_slot)

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


def nothing() -> None:
    """Leave the records: the body is not in them."""


def left_over(data: bytes, now: float) -> dict[bytes, SuspectBody]:
    """Return the suspects after the death of the process that left these slots, those first that are remembered for
    longest; at most half as many as there are slots."""
    suspects: dict[bytes, SuspectBody] = {}
    in_flight = set[bytes]()
    for until, deaths, digest in SLOT.iter_unpack(data[: len(data) - len(data) % SLOT.size]):
        if digest != NOTHING and until == 0.0:
            in_flight.add(digest)
        elif digest != NOTHING and now < until <= now + REFUSED_SECONDS:
            suspects[digest] = SuspectBody(until, min(deaths, MOST_DEATHS))
    for digest in in_flight:
        earlier = suspects.get(digest)
        suspects[digest] = SuspectBody(now + REFUSED_SECONDS, 1 + (0 if earlier is None else earlier.deaths))
    return dict(sorted(suspects.items(), key=lambda entry: entry[1].until, reverse=True)[: SLOTS // 2])


def digest_of(body: bytes, peer: str) -> bytes:
    """Return a digest from which the sender cannot be identified."""
    key = peer.encode()[-hashlib.blake2b.MAX_KEY_SIZE :]
    return hashlib.blake2b(body, digest_size=len(NOTHING), key=key).digest()
