# SPDX-License-Identifier: Apache-2.0
"""A sample of clients' requests, with receipts that their clients need not see, for an operator who listens.

Nothing is sampled, and no body kept, unless a session is open. What its reader does not take in time is dropped.
Of several proxies of a launch all record for the one whose reader listens.
"""

import asyncio
import json
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sanic import Request

from pontil.runtime.errors import Unavailable
from pontil.runtime.proxy.requests.stream import Wakeup
from pontil.runtime.proxy.siblings.recordings import HEARD_WITHIN, RecordingExchange
from pontil.runtime.receipts.record import (
    LEFT_OUT,
    LEFT_OUT_LINE,
    MOST_BODY,
    MOST_LINE,
    PATHS,
    RecordedAnswer,
    RecordedRequest,
    first_line,
    line_of,
)
from pontil.runtime.receipts.signing import ReceiptSigner

# Bytes of lines that wait for a session's reader.
MOST_WAITING = 16 << 20
# Numbers that a proxy leaves free for each second before it begins: more requests than any looks at.
MOST_IN_A_SECOND = 10_000
ANOTHER = "another record is being made of this server: wait until it ends, or end it"
# Fields of bodies that another server could not understand: they name what this one keeps.
STATEFUL = ("previous_response_id",)

T = TypeVar("T")


@dataclass(slots=True)
class RecordingSession:
    """One operator who listens: one request of `one_in` is sampled, and of a `redacted` record the digests alone are
    told. `lines` wait for the reader; requests whose lines had no room, or that have none, are `left_out`. Of several
    proxies each gives its requests numbers of its own: those of its `place` among so many."""

    one_in: int
    redacted: bool
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    place: int = 0
    places: int = 1
    lines: deque[bytes] = field(default_factory=deque)
    waiting: int = 0
    looked_at: int = 0
    left_out: int = 0
    wakeup: Wakeup = field(default_factory=Wakeup)

    def chosen(self) -> int | None:
        """Return the number of the next request, if it is one of the sample."""
        self.looked_at += 1
        number = 1 + (self.looked_at - 1) * self.places + self.place
        return number if secrets.randbelow(self.one_in) == 0 else None

    def put(self, line: bytes | None) -> None:
        """Have the reader get a line; None for a request that has none."""
        if line is None or self.waiting + len(line) > MOST_WAITING:
            self.left_out += 1
            return
        self.waiting += len(line)
        self.lines.append(line)
        self.wakeup.wake()

    def put_part(self, part: bytes) -> None:
        """Have the reader get what another proxy has recorded."""
        for line in part.splitlines(keepends=True):
            if line.startswith(LEFT_OUT_LINE):
                self.left_out += int(json.loads(line)[LEFT_OUT])
            else:
                self.put(line)

    def take(self) -> bytes:
        """Return what waits, in one piece; where nothing does, a line that shows that the server is there."""
        if not self.lines:
            return line_of({LEFT_OUT: self.left_out}) if self.left_out else b"\n"
        data = b"".join(self.lines)
        self.lines.clear()
        self.waiting = 0
        return data

    def take_part(self) -> bytes:
        """Return what waits for another proxy, with how many were left out since the last time."""
        left_out, self.left_out = self.left_out, 0
        return (line_of({LEFT_OUT: left_out}) if left_out else b"") + (self.take() if self.lines else b"")


@dataclass(slots=True)
class RequestSample:
    """A request that is to be recorded when its answer is complete. Its `body` is set once that is understood."""

    session: RecordingSession
    number: int
    path: str
    key: str
    at: int
    body: dict[str, Any] | None = None

    def line(self, answers: list[RecordedAnswer], signer: ReceiptSigner) -> bytes | None:
        """Return its line of the record; None for one that is too long, or that JSON cannot represent. Takes as long as
        the prompt has ids: not for an event loop."""
        request = RecordedRequest(self.session.name, self.number, self.at, self.path, self.key, self.body, answers)
        try:
            line = signer.record_line(request, redacted=self.session.redacted)
        except ValueError:
            return None
        return line if len(line) <= MOST_LINE else None


def sample_of(request: Request) -> RequestSample | None:
    """Return the sample that this request is, if it is one and its body was understood."""
    sample: RequestSample | None = getattr(request.ctx, "sample", None)
    return None if sample is None or sample.body is None else sample


class SampleDesk:
    """The choice of requests to be recorded, for at most one session of a launch: of the proxy in this `place`, among
    others with which it has an `exchange` of records."""

    def __init__(self, exchange: RecordingExchange | None = None, place: int = 0, places: int = 1) -> None:
        self.exchange, self.place, self.places = exchange, place, places
        self.session: RecordingSession | None = None
        if exchange is not None:
            exchange.recorder = self

    async def open(self, one_in: int, *, redacted: bool) -> RecordingSession:
        """Begin a session of all proxies. Raises Unavailable while there is another one."""
        if self.session is not None:
            raise Unavailable(ANOTHER)
        session = self.session = RecordingSession(one_in, redacted, place=self.place, places=self.places)
        session.put(first_line(session.name, redacted=redacted))
        try:
            await self.tell(session)
        except BaseException:
            self.close()
            raise
        return session

    async def tell(self, session: RecordingSession) -> None:
        """Have the other proxies record, too."""
        if self.exchange is None:
            return
        wish = line_of({"recording": session.name, "one_in": session.one_in, "redacted": session.redacted})
        try:
            is_only = await asyncio.to_thread(self.exchange.begin, wish)
        except OSError as error:
            raise Unavailable(f"the other proxies cannot be told of a record ({error.strerror})") from None
        if not is_only:
            raise Unavailable(ANOTHER)
        await asyncio.sleep(HEARD_WITHIN)

    def close(self) -> None:
        if self.exchange is not None:
            self.exchange.end()
        self.session = None

    # The parts of a RequestRecording.

    def follow(self, wish: bytes, seconds: float) -> None:
        asked = json.loads(wish)
        # A proxy that begins again goes on behind the numbers of the one before it.
        self.session = RecordingSession(
            asked["one_in"], asked["redacted"], asked["recording"], self.place, self.places,
            looked_at=int(seconds * MOST_IN_A_SECOND),
        )  # fmt: skip

    def part(self) -> bytes:
        return b"" if self.session is None else self.session.take_part()

    def lose(self, part: bytes) -> None:
        if self.session is not None:
            self.session.put_part(b"".join(map(lost, part.splitlines(keepends=True))))

    def hear(self, part: bytes) -> None:
        if self.session is not None:
            self.session.put_part(part)

    def leave(self) -> None:
        self.session = None

    def over(self, request: Request, understand: Callable[[dict[str, Any]], T]) -> Callable[[dict[str, Any]], T]:
        """Return what reads a body, and keeps that of a request which is to be recorded."""
        session = self.session
        number = session.chosen() if session is not None and is_recordable(request) else None
        if session is None or number is None:
            return understand
        sample = RequestSample(session, number, request.path, request.ctx.ticket.caller, int(time.time()))
        request.ctx.sample = sample

        def understood(body: dict[str, Any]) -> T:
            if not any(name in body for name in STATEFUL):
                sample.body = body
            return understand(body)

        return understood


def lost(line: bytes) -> bytes:
    """Return what is said in the place of a line that cannot be told."""
    return line if line.startswith(LEFT_OUT_LINE) else line_of({LEFT_OUT: 1})


def is_recordable(request: Request) -> bool:
    """Return whether a request is one that can be sent again: its body is small, and stands for itself."""
    length = request.headers.getone("content-length", "")
    is_small = length.isdecimal() and len(length) < 10 and int(length) <= MOST_BODY
    is_plain = "content-encoding" not in request.headers and "last-event-id" not in request.headers
    return is_small and is_plain and request.path in PATHS and "pontil-replay" not in request.headers
