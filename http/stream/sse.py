# SPDX-License-Identifier: Apache-2.0
"""Server-sent events to one client (F4), which may be slow or gone (F7), without a task switch per token."""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from sanic import HTTPResponse, Request

from pontil.runtime.proxy.requests.answer import ChoiceEvent
from pontil.runtime.proxy.requests.stream import MessageTurn, Stream
from pontil.runtime.proxy.requests.wakeup import Wakeup

HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
CONTENT_TYPE = "text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
# Seconds without data after which a stream that has begun gets a comment.
KEEP_ALIVE_AFTER = 10.0


class EventStreamResponse(HTTPResponse):
    """The head of a stream. Sanic takes line ends out of every name and value, letter by letter; here that is done only
    for one that has any unprintable character."""

    @property
    def processed_headers(self) -> Any:
        self.headers.setdefault("content-type", self.content_type)
        # The length of a body that is sent in one piece is a number.
        headers = [(name, str(value)) for name, value in self.headers.items()]
        if not all(name.isprintable() and value.isprintable() for name, value in headers):
            return super().processed_headers
        return [(name.encode("ascii"), value.encode()) for name, value in headers]


def event(data: Any) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class EventWriter:
    """The writer of one response's body. The response begins with the first bytes sent, and `headers` is called then. A
    full buffer makes only this stream wait. `pending` is written at the end of the `turn`."""

    def __init__(
        self,
        request: Request,
        headers: Callable[[], dict[str, str]],
        turn: MessageTurn,
        content_type: str = CONTENT_TYPE,
    ) -> None:
        self.request, self.headers, self.turn, self.content_type = request, headers, turn, content_type
        self.protocol: Any = request.protocol
        self.response: Any = None
        self.pending: list[bytes] = []
        self.wrote_at = time.monotonic()

    @property
    def begun(self) -> bool:
        return self.response is not None

    @property
    def has_room(self) -> bool:
        """True if the connection's buffer has room."""
        return bool(self.protocol.has_room)

    @property
    def keeps_up(self) -> bool:
        """True if the response has begun and the buffer has room, as `write` requires."""
        return self.response is not None and self.has_room

    def write(self, data: bytes) -> None:
        """Write data of the body without waiting; the reader must keep up."""
        self.pending.append(data)
        if len(self.pending) == 1:
            self.turn.defer(self.flush)

    def hold(self, data: bytes) -> None:
        """Keep data of the body that goes out with what is written or sent next. An empty chunk would end the body."""
        if data:
            self.pending.append(data)

    def flush(self) -> None:
        """Write the pending data as one chunk. Does nothing if the client has disconnected: that cancels its task
        anyway."""
        if not self.pending:
            return
        data, self.pending = b"".join(self.pending), []
        protocol, self.wrote_at = self.protocol, time.monotonic()
        if not protocol.transport.is_closing():
            protocol.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
            # Restart sanic's response timeout.
            protocol._time = self.wrote_at

    async def send(self, data: bytes, last: bool = False) -> None:
        """Send a chunk after what was held, waiting for room."""
        if not self.begun:
            head = EventStreamResponse(content_type=self.content_type, headers=HEADERS | self.headers())
            self.response = await self.request.respond(head)
        self.wrote_at = time.monotonic()
        if self.pending:
            data, self.pending = b"".join([*self.pending, data]), []
        await self.response.send(data, end_stream=last)


class StreamWriter:
    """The delivery of a stream. While the client keeps up, events are written synchronously by the call that handles
    the worker's message, and this task sleeps (docs/decisions/019). It wakes for the first bytes, for a client that is
    behind, to send a keep-alive, and at the end."""

    def __init__(self, stream: Stream, render: Callable[[Sequence[ChoiceEvent]], bytes], writer: EventWriter) -> None:
        self.stream, self.render, self.writer = stream, render, writer
        self.wakeup = Wakeup()
        self.broken: Exception | None = None

    async def run(self) -> None:
        """Send all events. Raises the error that ended one of the requests; if that comes before the first bytes, none
        are sent."""
        self.stream.expect_whole()
        self.stream.listen(self.on_events)
        while True:
            data = self.render(self.stream.drain())
            if data and (self.writer.begun or self.stream.error is None):
                await self.send(data)
            elif self.stream.is_over:
                break
            else:
                await self.sleep()
        if self.stream.error is not None:
            raise self.stream.error

    async def send(self, data: bytes) -> None:
        """Send data, and let the stream know of its beginning, and while its reader takes nothing."""
        if not self.writer.begun:
            self.stream.begin()
        self.stream.note_reader(takes=self.writer.has_room)
        await self.writer.send(data)
        self.stream.note_reader(takes=True)

    def on_events(self) -> None:
        """Handle new events: write them, or wake the task. While the task is awake it polls by itself."""
        if self.wakeup.is_awaited and not (self.writer.keeps_up and self.write_now()):
            self.wakeup.wake()

    def write_now(self) -> bool:
        """Write the new events; return False if the task has more to do. It sends the last ones with what ends the
        reply, which is one write less."""
        try:
            data = self.render(self.stream.drain())
        except Exception as error:  # Only this reply is broken: the message may have tokens for others.
            self.broken = error
            return False
        if self.stream.is_over:
            self.writer.hold(data)
            return False
        if data:
            self.writer.write(data)
        return not self.stream.has_more

    async def sleep(self) -> None:
        """Wait until the task has something to do, or send a keep-alive after too long a silence (F4)."""
        await self.wakeup.wait(KEEP_ALIVE_AFTER - self.silence if self.writer.begun else None)
        if self.broken is not None:
            raise self.broken
        if self.writer.begun and self.silence >= KEEP_ALIVE_AFTER:
            await self.send(KEEP_ALIVE)

    @property
    def silence(self) -> float:
        return time.monotonic() - self.writer.wrote_at
