# SPDX-License-Identifier: Apache-2.0
"""A sample of clients' requests, with receipts that their clients need not see, for an operator who listens.

Nothing is sampled, and no body kept, unless a session is open. What its reader does not take in time is dropped.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sanic import Request

from pontil.runtime.errors import Unavailable
from pontil.runtime.proxy.requests.stream import Wakeup
from pontil.runtime.receipts.record import (
    LEFT_OUT,
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
# Fields of bodies that another server could not understand: they name what this one keeps.
STATEFUL = ("previous_response_id",)

T = TypeVar("T")


@dataclass(slots=True)
class RecordingSession:
    """One operator who listens: one request of `one_in` is sampled, and of a `redacted` record the digests alone are
    told. `lines` wait for the reader; requests whose lines had no room, or that have none, are `left_out`."""

    one_in: int
    redacted: bool
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    lines: deque[bytes] = field(default_factory=deque)
    waiting: int = 0
    looked_at: int = 0
    left_out: int = 0
    wakeup: Wakeup = field(default_factory=Wakeup)

    def __post_init__(self) -> None:
        self.put(first_line(self.name, redacted=self.redacted))

    def chooses(self) -> bool:
        self.looked_at += 1
        return secrets.randbelow(self.one_in) == 0

    def put(self, line: bytes | None) -> None:
        """Have the reader get a line; None for a request that has none."""
        if line is None or self.waiting + len(line) > MOST_WAITING:
            self.left_out += 1
            return
        self.waiting += len(line)
        self.lines.append(line)
        self.wakeup.wake()

    def take(self) -> bytes:
        """Return what waits, in one piece; where nothing does, a line that shows that the server is there."""
        if not self.lines:
            return line_of({LEFT_OUT: self.left_out}) if self.left_out else b"\n"
        data = b"".join(self.lines)
        self.lines.clear()
        self.waiting = 0
        return data


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
    """The choice of requests to be recorded, for at most one session of a proxy."""

    def __init__(self) -> None:
        self.session: RecordingSession | None = None

    def open(self, one_in: int, *, redacted: bool) -> RecordingSession:
        """Begin a session. Raises Unavailable while there is another one."""
        if self.session is not None:
            raise Unavailable("another record is being made at this proxy: wait until it ends, or end it")
        self.session = RecordingSession(one_in, redacted)
        return self.session

    def close(self) -> None:
        self.session = None

    def over(self, request: Request, understand: Callable[[dict[str, Any]], T]) -> Callable[[dict[str, Any]], T]:
        """Return what reads a body, and keeps that of a request which is to be recorded."""
        session = self.session
        if session is None or not is_recordable(request) or not session.chooses():
            return understand
        sample = RequestSample(session, session.looked_at, request.path, request.ctx.ticket.caller, int(time.time()))
        request.ctx.sample = sample

        def understood(body: dict[str, Any]) -> T:
            if not any(name in body for name in STATEFUL):
                sample.body = body
            return understand(body)

        return understood


def is_recordable(request: Request) -> bool:
    """Return whether a request is one that can be sent again: its body is small, and stands for itself."""
    length = request.headers.getone("content-length", "")
    is_small = length.isdecimal() and len(length) < 10 and int(length) <= MOST_BODY
    is_plain = "content-encoding" not in request.headers and "last-event-id" not in request.headers
    return is_small and is_plain and request.path in PATHS and "pontil-replay" not in request.headers
