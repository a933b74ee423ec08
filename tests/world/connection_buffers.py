# SPDX-License-Identifier: Apache-2.0
"""The bytes of a connection that lie on either side: of a client that takes them at its own pace, and of a proxy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from virtual_time import SeededWorld

# Bytes that lie between a proxy and a client that reads slowly, outside of the proxy's buffer.
ON_THE_WAY = 2048
# The buffer's limits are those that the proxy sets divided by this: answers are as much shorter than real ones.
SHORTER = 16
# Bytes that a proxy reads at once.
MOST_READ = 1 << 18


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of a client that reads or sends so many bytes at a time, with pauses, and once takes a `rest` after the
    first `before_rest` bytes."""

    piece: int
    pause: float
    before_rest: int = 0
    rest: float = 0.0

    def seconds_after(self, before: int, count: int) -> float:
        """Return the pause behind bytes `before` to `before + count`."""
        return self.pause + (self.rest if before <= self.before_rest < before + count else 0.0)


class PacedInbox:
    """The bytes that have come to a client that takes them at its own pace, and then the end, if that has come. `hear`
    is called with each piece, `hear_end` at the end, and `hold_up` with the seconds for which the client makes others
    wait."""

    def __init__(
        self, world: SeededWorld, pace: Pace, hear: Callable[[bytes], None], hear_end: Callable[[], None],
        hold_up: Callable[[float], None],
    ) -> None:  # fmt: skip
        self.world, self.pace, self.hear, self.hear_end, self.hold_up = world, pace, hear, hear_end, hold_up
        self.bytes = bytearray()
        self.read = 0
        self.is_reading = self.has_ended = False

    def put(self, data: bytes) -> None:
        self.bytes += data
        self.begin()

    def end(self) -> None:
        self.has_ended = True
        self.begin()

    def begin(self) -> None:
        if not self.is_reading:
            self.is_reading = True
            self.take()

    def take(self) -> None:
        """Take a piece, and the next one after a pause."""
        piece = bytes(self.bytes[: self.pace.piece])
        if not piece:
            self.is_reading = False
            if self.has_ended:
                self.hear_end()
            return
        del self.bytes[: len(piece)]
        seconds = self.pace.seconds_after(self.read, len(piece))
        self.read += len(piece)
        self.world.after(seconds, self.take)
        if self.bytes or seconds > self.pace.pause:
            self.hold_up(seconds)
        self.hear(piece)


class WriteBuffer:
    """The part of an answer that the way to a client does not take. `send` puts bytes on the way. The protocol pauses
    writing above the higher limit, until it is at the lower one."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self.send = send
        self.protocol: Any = None
        self.bytes, self.room = bytearray(), ON_THE_WAY
        self.low = self.high = 0
        self.is_full = False

    def put(self, data: bytes) -> None:
        self.bytes += data
        self.pass_on()
        if len(self.bytes) > self.high and not self.is_full:
            self.is_full = True
            self.protocol.pause_writing()

    def pass_on(self) -> None:
        part = bytes(self.bytes[: self.room])
        if part:
            del self.bytes[: len(part)]
            self.room -= len(part)
            self.send(part)

    def free(self, count: int) -> None:
        """Go on when the client has taken so many bytes."""
        self.room += count
        self.pass_on()
        if self.is_full and len(self.bytes) <= self.low:
            self.is_full = False
            self.protocol.resume_writing()


class UnreadBytes:
    """The bytes that a proxy has not read; None is the end, which it does not see either while it does not read."""

    def __init__(self, hear: Callable[[bytes], None], hear_end: Callable[[], None]) -> None:
        self.hear, self.hear_end = hear, hear_end
        self.reads, self.pieces = True, list[bytes | None]()

    def put(self, data: bytes | None) -> None:
        self.pieces.append(data)
        self.read_on()

    def read_on(self) -> None:
        """Read as long as the proxy wants to."""
        while self.pieces and self.reads:
            first = self.pieces.pop(0)
            if first is None:
                self.pieces.clear()
                self.hear_end()
                return
            while self.pieces and (more := self.pieces[0]) is not None and len(first) < MOST_READ:
                first += more
                self.pieces.pop(0)
            self.hear(first)
