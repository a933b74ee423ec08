# SPDX-License-Identifier: Apache-2.0
"""Sanic's HTTP/1.1 over heads and chunks that were checked first (raw_head.py)."""

import asyncio
import logging
import re
import time
from typing import Any

from sanic.exceptions import BadRequest, ExpectationFailed, SanicException, ServiceUnavailable
from sanic.http import Http, Stage
from sanic.http.http1 import HTTP_CONTINUE

from pontil.http.server.connection_limit import REFUSAL, ConnectionLimit
from pontil.http.server.early_answer import early_answer
from pontil.http.server.raw_head import MAX_HEAD_BYTES, chunk_fault, foreign_byte, head_fault

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
        found: ConnectionLimit = self.protocol.app.ctx.connection_limit
        return found

    def init_for_request(self) -> None:
        untyped: Any = super()
        untyped.init_for_request()
        self.limit.waits(self.protocol)
        if self.is_last:
            self.protocol.close_if_idle()

    @property
    def is_last(self) -> bool:
        """Return whether no other request may follow, since the server leaves."""
        stopped: bool = self.protocol.signal.stopped
        return stopped

    async def http1_request_header(self) -> None:
        protocol: Any = self.protocol
        protocol.begun = time.monotonic()
        self.limit.waits(protocol)
        await leave_turn()
        await self.check_head()
        untyped: Any = super()
        try:
            await untyped.http1_request_header()
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
        buffer, seen = self.recv_buffer, 0
        while True:
            end = buffer.find(END, max(0, seen - len(END) + 1))
            size = len(buffer) if end == -1 else end
            # The byte behind the head tells whether a CR at its end is one without LF.
            if reason := foreign_byte(buffer, seen, min(size + 1, MAX_HEAD_BYTES)):
                raise malformed(reason)
            if size >= MAX_HEAD_BYTES:
                says = f"the head of the request is larger than {MAX_HEAD_BYTES} bytes: send shorter headers"
                raise SanicException(says, status_code=431)
            if end != -1:
                break
            seen = size
            await self._receive_more()
        if reason := head_fault(bytes(buffer[:end])):
            raise malformed(reason)

    async def read(self) -> bytes | None:
        form: Any = self.request_body
        if form == "chunked" and self.request_bytes_left == 0:
            await self.check_chunk()
        untyped: Any = super()
        piece: bytes | None = await untyped.read()
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
        untyped: Any = super()
        if self.request is not None:
            await untyped.error_response(exception)
            return
        if not isinstance(exception, SanicException):
            raise exception
        # Sanic would check the access of a request without a head.
        self.keep_alive, self.stage = False, Stage.RESPONSE
        if self.protocol.app.ctx.malformed_heads.is_due(time.monotonic()):
            shown = SHOWN.match(self.recv_buffer)
            LOG.warning(
                "a request is refused, %s; it begins with %s", exception, ascii(bytes(shown[0] if shown else b""))
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
