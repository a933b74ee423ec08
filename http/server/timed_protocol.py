# SPDX-License-Identifier: Apache-2.0
"""A connection with a deadline for receiving a whole request, however slowly its bytes arrive."""

import asyncio
import time
from typing import Any

from sanic.exceptions import RequestTimeout, SanicException
from sanic.http import Stage
from sanic.http.http1 import HTTP_CONTINUE
from sanic.server.protocols.http_protocol import HttpProtocol

from pontil.http.access.failed_keys import place_of
from pontil.http.server.checked_http import CheckedHttp, full
from pontil.http.server.early_answer import early_answer
from pontil.runtime.timeline.received import noted
from pontil.runtime.timeline.timeline import WRITE

RECEIVE_SECONDS = 60.0
# A client that connects has something to send. One that stays longer before its first byte only takes a place.
FIRST_BYTE_SECONDS = 20.0
# Seconds in which a client takes nothing of its answer, with the connection's buffer full, before it is taken for gone.
READER_PATIENCE = 60.0


class TimedProtocol(HttpProtocol):
    """HTTP protocol with a receive deadline. Sanic's own restarts its clock with every byte, and takes a body that does
    not arrive for a response that is not ready."""

    HTTP_CLASS = CheckedHttp
    __slots__ = ("begun", "has_room", "reader_watch")

    def connection_made(self, transport: Any) -> None:
        # False while the transport asks to pause writing.
        self.has_room = True
        # The time at which the last request began to be read; None before the first one.
        self.begun: float | None = None
        self.reader_watch: asyncio.TimerHandle | None = None
        gives_way = self.app.ctx.connection_limit.opens(self, network_of(transport), time.monotonic())
        if gives_way is self:
            transport.write(early_answer(full()))
            transport.close()
            return
        untyped: Any = super()
        untyped.connection_made(transport)
        if gives_way is not None:
            gives_way.give_way()

    def connection_lost(self, exc: Exception | None) -> None:
        self.app.ctx.connection_limit.closes(self)
        # A refused connection was never set up.
        if self.conn_info is not None:
            untyped: Any = super()
            untyped.connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for the client, which has to take some of its answer: so long it may have to give way to others."""
        self.has_room = False
        self.app.ctx.connection_limit.waits(self)
        self.watch_reader()
        untyped: Any = super()
        untyped.pause_writing()

    def resume_writing(self) -> None:
        self.has_room = True
        if self.reader_watch is not None:
            self.reader_watch.cancel()
        if self.http and not self.is_receiving:
            self.app.ctx.connection_limit.serves(self)
        untyped: Any = super()
        untyped.resume_writing()

    def watch_reader(self, before: int | None = None) -> None:
        """End the connection of a client that has taken nothing since so many bytes were `before` it; else look again
        in a while."""
        transport: Any = self.transport
        left = transport.get_write_buffer_size()
        if before is not None and left >= before:
            transport.abort()
            return
        if before is not None:
            # Restart Sanic's timeouts.
            self._time = time.monotonic()
        self.reader_watch = self.loop.call_later(READER_PATIENCE, self.watch_reader, left)

    async def send(self, data: Any) -> None:
        """Send a part of a response. Between the first and the last one a stream's are written directly."""
        untyped: Any = super()
        if data == HTTP_CONTINUE:
            # The leave to send a body is no part of the response.
            await untyped.send(data)
            return
        noted(WRITE)
        await untyped.send(data)
        noted(WRITE)

    def data_received(self, data: bytes) -> None:
        if self.is_receiving and self.is_late:
            self.give_up(too_late())
            return
        super().data_received(data)

    def check_timeouts(self) -> None:
        if self.http is not None:
            # Nothing here is a websocket; Sanic applies no timeout to a connection that asks for an upgrade.
            self.http.upgrade_websocket = False
        if self.begun is None:
            self.await_first_byte()
        elif self.is_receiving and self.is_late:
            self.give_up(too_late())
        else:
            untyped: Any = super()
            untyped.check_timeouts()

    @property
    def is_receiving(self) -> bool:
        """Return whether a request has begun to arrive and is incomplete, though it may have been answered."""
        http: Any = self.http
        # A connection that has received nothing has no such field.
        return http is not None and (http.stage is Stage.REQUEST or getattr(http, "request_body", None) is not None)

    @property
    def is_late(self) -> bool:
        return self.begun is not None and time.monotonic() - self.begun > RECEIVE_SECONDS

    def await_first_byte(self) -> None:
        """Close a connection on which nothing has come in time; look again when the time is over."""
        left = self._time + FIRST_BYTE_SECONDS - time.monotonic()
        if left <= 0:
            self.close()
        else:
            untyped: Any = self
            untyped._callback_check_timeouts = self.loop.call_later(left, self.check_timeouts)

    def close_if_idle(self) -> bool:
        """Close the connection of a server that leaves, unless a request comes within its `linger`: one may have been
        sent that is not here yet."""
        self.loop.call_later(self.app.ctx.linger, super().close_if_idle)
        return False

    def give_way(self) -> None:
        """Close a connection that waits for its client: others need its place."""
        if not self.has_room:
            transport: Any = self.transport
            transport.abort()
        elif self.is_receiving:
            self.give_up(full())
        else:
            self.close()

    def give_up(self, reason: SanicException) -> None:
        """Send the reason where nothing was answered yet, and close the connection."""
        http: Any = self.http
        http.exception = reason
        http.request_body, http.keep_alive = None, False
        task: Any = self._task
        task.cancel()


def too_late() -> RequestTimeout:
    return RequestTimeout(f"the request did not come whole within {RECEIVE_SECONDS:g} s: send it faster")


def network_of(transport: Any) -> str:
    """Return the network whose connections share a place: an IPv4 address, or an IPv6 /64."""
    peer = transport.get_extra_info("peername")
    return place_of(peer[0]) if peer else ""
