# SPDX-License-Identifier: Apache-2.0
"""/admin/record: requests of clients with receipts, as they are answered, for as long as an operator listens."""

from typing import Any

from sanic import HTTPResponse, Request
from sanic.response import empty

from pontil.http.access.endpoint import Endpoint, RouteAccess
from pontil.http.openai.completions.route import GenerationRoutes
from pontil.http.stream.recording import RecordingSession
from pontil.http.stream.reply import HEADERS, EventStreamResponse
from pontil.http.stream.reply_schema import ANY_OBJECT
from pontil.runtime.errors import RequestError

CONTENT_TYPE = "application/x-ndjson"
# Seconds after which a line that says nothing of a request is sent, and it is seen whether the reader may still listen.
BEAT = 1.0
MOST_APART = 1_000_000
ASKS = (
    ("one_in", {"type": "integer", "minimum": 1, "maximum": MOST_APART}),
    ("redacted", {"enum": ["0", "1"]}),
)


class RecordStream:
    """The handler over one proxy."""

    def __init__(self, generation: GenerationRoutes) -> None:
        self.generation, self.recorder = generation, generation.recorder

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(
            "GET",
            "/admin/record",
            self.admin_record,
            "Requests with receipts, as they are answered.",
            ANY_OBJECT,
            errors=(400, 503),
            content_type=CONTENT_TYPE,
            door=RouteAccess.ADMIN,
            asks=ASKS,
        )

    async def admin_record(self, request: Request) -> HTTPResponse | None:
        """Send the lines of a record but for the last one, which its reader makes. Raises RequestError without a key to
        sign with, and Unavailable while another one is made."""
        if request.method == "HEAD":
            return empty(200, headers=HEADERS | {"content-type": CONTENT_TYPE})
        if self.generation.receipts.signer is None or self.generation.proxy.config.graph is not None:
            raise RequestError("nothing can be recorded here: launch with --receipt-key, and a model of one stage")
        session = await self.recorder.open(one_in(request), redacted=request.args.get("redacted", "0") == "1")
        try:
            head = EventStreamResponse(content_type=CONTENT_TYPE, headers=HEADERS)
            await self.send(request, await request.respond(head), session)
        finally:
            self.recorder.close()
        return None

    async def send(self, request: Request, response: Any, session: RecordingSession) -> None:
        access, readiness = request.app.ctx.access, self.generation.proxy.readiness
        while access.still_admits(request) and not readiness.is_draining:
            await response.send(session.take())
            if not session.lines:
                await session.wakeup.wait(BEAT)
        await response.eof()


def one_in(request: Request) -> int:
    text = request.args.get("one_in", "1")
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else 0
    if not 1 <= number <= MOST_APART:
        raise RequestError(f"one_in must be a whole number from 1 to {MOST_APART}", param="one_in")
    return number
