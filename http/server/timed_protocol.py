# SPDX-License-Identifier: Apache-2.0
"""A connection with a deadline for receiving a whole request, however slowly its bytes arrive: sanic's HTTP/1.1 over
heads and chunks that were checked first (raw_head.py)."""

import asyncio
import json
import logging
import re
import time
from http import HTTPStatus
from typing import Any

from sanic.exceptions import BadRequest, ExpectationFailed, RequestTimeout, SanicException, ServiceUnavailable
from sanic.http import Http, Stage
from sanic.http.http1 import HTTP_CONTINUE
from sanic.server.protocols.http_protocol import HttpProtocol

from pontil.http.access.keyring import place_of
from pontil.http.server.connection_limit import REFUSAL, ConnectionLimit
from pontil.http.server.error_handler import CODES
from pontil.http.server.raw_head import MAX_HEAD_BYTES, chunk_fault, foreign_byte, head_fault
from pontil.http.server.request_id import HEADER, request_id
from pontil.http.stream.error_object import error_object
from pontil.runtime.timeline.received import noted
from pontil.runtime.timeline.timeline import WRITE


def early_answer(error: SanicException) -> bytes:
    """Return an error answer that ends its connection."""
    status = HTTPStatus(error.status_code)
    body = json.dumps(error_object(str(error), status, code=CODES.get(status))).encode()
    headers = {"content-type": "application/json", "content-length": len(body), HEADER: request_id(None)}
    fields = [f"{name}: {value}" for name, value in (headers | error.headers | {"connection": "close"}).items()]
    return "\r\n".join([f"HTTP/1.1 {status.value} {status.phrase}", *fields, "", ""]).encode() + body


RECEIVE_SECONDS = 60.0
# A client that connects has something to send. One that stays longer before its first byte only takes a place.
FIRST_BYTE_SECONDS = 20.0
# Seconds in which a client takes nothing of its answer, with the connection's buffer full, before it is taken for gone.
READER_PATIENCE = 60.0
LOG = logging.getLogger("pontil.http")
END = b"\r\n\r\n"
# The excerpt of refused bytes in the log: of the first line only, since headers hold keys.
SHOWN = re.compile(rb"[^\r\n]{0,60}")


class CheckedHttp(Http):
    """One connection's requests. What fails before there is a request, as a malformed head does, has an answer at once,
    whoever sends it, and ends the connection."""

    __slots__ = ()

    @property
    def limit(self) -> ConnectionLimit:
        connection_limit: ConnectionLimit = self.protocol.app.ctx.connection_limit
        return connection_limit

    def init_for_request(self) -> None:
        parent: Any = super()
        parent.init_for_request()
        self.limit.waits(self.protocol)
        if self.is_last:
            self.protocol.close_if_idle()

    @property
    def is_last(self) -> bool:
        """Return whether no other request may follow, since the server leaves."""
        is_stopped: bool = self.protocol.signal.stopped
        return is_stopped

    async def http1_request_header(self) -> None:
        protocol: Any = self.protocol
        protocol.begun = time.monotonic()
        self.limit.waits(protocol)
        await leave_turn()
        await self.check_head()
        parent: Any = super()
        try:
            await parent.http1_request_header()
        except BadRequest:
            raise BadRequest("the head of the request is not HTTP/1.1: send a well-formed one") from None
        except ExpectationFailed:
            raise ExpectationFailed("the header Expect is not 100-continue: send that, or leave it out") from None
        self.keep_alive = self.keep_alive and not self.is_last
        self.take_place()

    def take_place(self) -> None:
        """Keep the connection until the answer once its request is whole, unless answers before are still to be taken.
        Raises ServiceUnavailable where as many are served as may be."""
        if not self.limit.has_room(self.request.path):
            raise full()
        protocol: Any = self.protocol
        if self.request_body is None and protocol.has_room:
            self.limit.serves(protocol)

    async def check_head(self) -> None:
        """Wait for the whole head. Raises SanicException as soon as it is known to be none."""
        buffer, seen_bytes = self.recv_buffer, 0
        while True:
            end = buffer.find(END, max(0, seen_bytes - len(END) + 1))
            size = len(buffer) if end == -1 else end
            # The byte behind the head tells whether a CR at its end is one without LF.
            if reason := foreign_byte(buffer, seen_bytes, min(size + 1, MAX_HEAD_BYTES)):
                raise malformed(reason)
            if size >= MAX_HEAD_BYTES:
                says = f"the head of the request is larger than {MAX_HEAD_BYTES} bytes: send shorter headers"
                raise SanicException(says, status_code=431)
            if end != -1:
                break
            seen_bytes = size
            await self._receive_more()
        if reason := head_fault(bytes(buffer[:end])):
            raise malformed(reason)

    async def read(self) -> bytes | None:
        form: Any = self.request_body
        if form == "chunked" and self.request_bytes_left == 0:
            await self.check_chunk()
        parent: Any = super()
        piece: bytes | None = await parent.read()
        # A body that comes after its answer is read to be thrown away.
        if self.stage is Stage.HANDLER:
            self.take_place()
        return piece

    async def check_chunk(self) -> None:
        """Wait for the line that begins a chunk. Raises BadRequest for a malformed one."""
        # Sanic asks for the body when nothing of it has come; a client waits for this leave.
        if self.expecting_continue:
            self.expecting_continue = False
            await self._send(HTTP_CONTINUE)
        await leave_turn()
        while (is_malformed := chunk_fault(self.recv_buffer)) is None:
            await self._receive_more()
        if is_malformed:
            self.keep_alive = False
            raise BadRequest("the body is not in chunks as HTTP/1.1 has them: send a well-formed one")

    async def error_response(self, exception: Exception) -> None:
        parent: Any = super()
        if self.request is not None:
            await parent.error_response(exception)
            return
        if not isinstance(exception, SanicException):
            raise exception
        # Sanic would check the access of a request without a head.
        self.keep_alive, self.stage = False, Stage.RESPONSE
        if self.protocol.app.ctx.malformed_heads.is_due(time.monotonic()):
            beginning = SHOWN.match(self.recv_buffer)
            LOG.warning(
                "a request is refused, %s; it begins with %s",
                exception,
                ascii(bytes(beginning[0] if beginning else b"")),
            )
        await self._send(early_answer(exception))
        self.stage = Stage.IDLE


async def leave_turn() -> None:
    """Let the event loop have a turn: hundreds of requests or chunks may lie in one buffer."""
    await asyncio.sleep(0)


def malformed(reason: str) -> BadRequest:
    return BadRequest(f"the request is not HTTP/1.1: {reason}")


def full() -> ServiceUnavailable:
    return ServiceUnavailable(REFUSAL, headers={"retry-after": "1"})


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
        parent: Any = super()
        parent.connection_made(transport)
        if gives_way is not None:
            gives_way.give_way()

    def connection_lost(self, exc: Exception | None) -> None:
        self.app.ctx.connection_limit.closes(self)
        # A refused connection was never set up.
        if self.conn_info is not None:
            parent: Any = super()
            parent.connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for the client, which has to take some of its answer: so long it may have to give way to others."""
        self.has_room = False
        self.app.ctx.connection_limit.waits(self)
        self.watch_reader()
        parent: Any = super()
        parent.pause_writing()

    def resume_writing(self) -> None:
        self.has_room = True
        if self.reader_watch is not None:
            self.reader_watch.cancel()
        if self.http and not self.is_receiving:
            self.app.ctx.connection_limit.serves(self)
        parent: Any = super()
        parent.resume_writing()

    def watch_reader(self, before: int | None = None) -> None:
        """End the connection of a client that has taken nothing since so many bytes were `before` it; else look again
        in a while."""
        transport: Any = self.transport
        unsent_bytes = transport.get_write_buffer_size()
        if before is not None and unsent_bytes >= before:
            transport.abort()
            return
        if before is not None:
            # Restart Sanic's timeouts.
            self._time = time.monotonic()
        self.reader_watch = self.loop.call_later(READER_PATIENCE, self.watch_reader, unsent_bytes)

    async def send(self, data: Any) -> None:
        """Send a part of a response. Between the first and the last one a stream's are written directly."""
        parent: Any = super()
        if data == HTTP_CONTINUE:
            # The leave to send a body is no part of the response.
            await parent.send(data)
            return
        noted(WRITE)
        await parent.send(data)
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
            parent: Any = super()
            parent.check_timeouts()

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
        seconds_left = self._time + FIRST_BYTE_SECONDS - time.monotonic()
        if seconds_left <= 0:
            self.close()
        else:
            untyped_self: Any = self
            untyped_self._callback_check_timeouts = self.loop.call_later(seconds_left, self.check_timeouts)

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
