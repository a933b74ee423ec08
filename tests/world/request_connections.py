# SPDX-License-Identifier: Apache-2.0
"""Clients' ends of connections, with the requests that wait for their answers, and who may share one."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from connection_buffers import Pace
from connections import ClientConnection
from http_reader import HttpReader
from served_proxy import ProxyProcess
from virtual_time import SeededWorld


class AnswerTaker(Protocol):
    """The one who asked for an answer. Who inherits it need not look at more than the whole answer."""

    def answered(self, reader: HttpReader) -> None:
        """Act on a whole answer."""

    def received(self, new: bytes) -> None:
        """Take what has come of the body; the head has."""
        return

    def disconnected(self) -> None:
        """Act on the end of the connection, before that of the answer."""
        return

    def held_up(self, seconds: float) -> None:
        """Note that it has not waited for the server until now, and waits for a client for so many more seconds."""
        return


@dataclass(slots=True)
class PendingAnswer:
    """An answer that comes over a connection."""

    taker: AnswerTaker
    connection: "RequestConnection"
    reader: HttpReader = field(default_factory=HttpReader)


class RequestConnection:
    """A client's end of a connection. Answers come in the order in which they were asked for. `stays` is true if it is
    kept for more requests."""

    def __init__(
        self, world: SeededWorld, process: ProxyProcess, number: int, pace: Pace | None = None, stays: bool = False
    ) -> None:
        self.world, self.process, self.stays = world, process, stays
        self.waiting: deque[PendingAnswer] = deque()
        self.made = ClientConnection(world, process, self, number, pace)

    @property
    def is_open(self) -> bool:
        return not self.made.left

    def ask(self, taker: AnswerTaker, data: bytes, pace: Pace | None = None) -> PendingAnswer:
        """Send a request, at its client's pace."""
        pending = PendingAnswer(taker, self)
        self.waiting.append(pending)
        if pace is None:
            self.made.send(data)
        else:
            self.send_piece(data, pace, 0)
        return pending

    def send_piece(self, data: bytes, pace: Pace, sent: int) -> None:
        if self.is_open and (piece := data[sent : sent + pace.piece]):
            self.made.send(piece)
            seconds = pace.seconds_after(sent, len(piece))
            self.held_up(seconds)
            self.world.after(seconds, lambda: self.send_piece(data, pace, sent + len(piece)))

    def leave(self, one: PendingAnswer) -> None:
        """Close it, for one of those that wait; the others have to ask anew."""
        others = [other for other in self.waiting if other is not one]
        self.waiting.clear()
        self.made.leave()
        for other in others:
            other.taker.disconnected()

    # The parts that a connection calls.

    def received(self, data: bytes) -> None:
        while data and self.waiting:
            first = self.waiting[0]
            new = first.reader.feed(data)
            if first.reader.status is None:
                return
            first.taker.received(new)
            if not first.reader.complete or not self.waiting or self.waiting[0] is not first:
                return
            self.waiting.popleft()
            data = first.reader.raw
            if not self.stays:
                self.made.leave()
            self.held_up(0.0)
            first.taker.answered(first.reader)

    def disconnected(self) -> None:
        waiting = list(self.waiting)
        self.waiting.clear()
        for one in waiting:
            one.taker.disconnected()

    def held_up(self, seconds: float) -> None:
        if self.waiting:
            self.waiting[0].taker.held_up(seconds)


class Dialer:
    """The maker of connections to the proxies that listen. `find` returns one that takes a connection, if there is one.
    Clients of a name that share a connection send their requests over it without waiting for answers."""

    def __init__(self, world: SeededWorld, find: Callable[[], ProxyProcess | None]) -> None:
        self.world, self.find = world, find
        self.made: list[RequestConnection] = []
        self.shared: dict[str, RequestConnection] = {}

    def dial(self, number: int, pace: Pace | None = None, shared_by: str | None = None) -> RequestConnection | None:
        if shared_by in self.shared and self.shared[shared_by].is_open:
            return self.shared[shared_by]
        process = self.find()
        if process is None:
            return None
        made = RequestConnection(self.world, process, number, pace, stays=shared_by is not None)
        self.made.append(made)
        if shared_by is not None:
            self.shared[shared_by] = made
        return made
