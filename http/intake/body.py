# SPDX-License-Identifier: Apache-2.0
"""Reading of request bodies: received within limits, unpacked where they were sent with content-encoding: gzip (RFC
1952), parsed as JSON and validated."""

import re
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from sanic import Request

from pontil.http.access.in_flight_bodies import InFlightBodies
from pontil.http.fields.prompt import MAX_PROMPTS
from pontil.http.intake.caller_turns import CALLER, RETRY_SECONDS
from pontil.http.intake.multipart import FormPart, boundary_of, read_form
from pontil.http.intake.ordered_executor import OrderedExecutor
from pontil.http.schema.json_body import LARGE_BODY, parse_body
from pontil.http.schema.reader import IgnoredFields
from pontil.runtime.errors import RequestError, Unavailable
from pontil.runtime.proxy.requests.shared_room import SharedRoom
from pontil.runtime.timeline.received import timed
from pontil.runtime.timeline.timeline import RECEIVE

MOST_BODY = 8 << 20
"""Bytes of a body, whatever a context could hold."""
BYTES_PER_ID = 8
"""An id of six digits in a list; few tokens are more text than that."""
UNPACKED_PIECE = 1 << 20
"""Bytes that are unpacked in one turn."""
BESIDE_PROMPTS = 1 << 20
MOST_BUFFERED = 64 << 20
"""Bytes of all bodies that have not been understood yet, but for the first LARGE_BODY of each. Callers share them."""

JSON_TYPE = re.compile(r"application/(?:[\w.+-]+\+)?json", re.IGNORECASE | re.ASCII)
CHARSET = re.compile(r"charset\s*=\s*\"?([\w-]+)", re.IGNORECASE)
UTF_8 = ("utf-8", "utf8", "us-ascii")
# Statuses besides those of its parameters: see docs/guide/api.md.
BODY_ERRORS = (400, 404, 408, 413, 415)
# Those of a request that workers answer.
GENERATION_ERRORS = (*BODY_ERRORS, 403, 429, 503)

T = TypeVar("T")
GZIP_WINDOW = 31
"""zlib's number for the format of gzip."""
INPUT_PIECE = 16 << 10


class PackedBody:
    """One packed body. No call of `read` takes or returns more than a bounded number of bytes, so that a small body
    that would become a very large one costs no more than what is asked for."""

    def __init__(self, packed: bytes) -> None:
        self.packed, self.at = memoryview(packed), 0
        self.left = b""
        self.unpacker = zlib.decompressobj(GZIP_WINDOW)

    @property
    def ended(self) -> bool:
        return self.unpacker.eof

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes, none at the end. Raises RequestError for what is not one whole gzip file."""
        try:
            return b"".join(self.pieces(size))
        except zlib.error as error:
            raise RequestError(f"the body is not gzip, as its content-encoding says: {error}") from None

    def pieces(self, size: int) -> list[bytes]:
        body_pieces: list[bytes] = []
        while size and not self.ended:
            if not self.left:
                self.left = bytes(self.packed[self.at : self.at + INPUT_PIECE])
                self.at += len(self.left)
            # Without further input there may still be output that had no room before.
            body_pieces.append(self.unpacker.decompress(self.left, size))
            if not self.left and not body_pieces[-1]:
                raise RequestError("the body ends within its gzip data: send it whole")
            self.left = self.unpacker.unconsumed_tail
            size -= len(body_pieces[-1])
        if self.ended and (self.unpacker.unused_data or self.at < len(self.packed)):
            raise RequestError("the body goes on after its gzip data: send one gzip file")
        return body_pieces


def largest_body(context: int | None) -> int:
    """Return the bytes for the most prompts that a request may hold, each as long as the context, and for the request's
    other fields; never more than MOST_BODY."""
    return MOST_BODY if context is None else min(MOST_BODY, MAX_PROMPTS * context * BYTES_PER_ID + BESIDE_PROMPTS)


def check_type(request: Request) -> None:
    """Raise RequestError (415) for another content type, even where the body holds JSON: a page in a browser, which has
    an origin, can send those types to any server without a preflight. No content type and no origin mean JSON."""
    content_type = request.headers.getone("content-type", None)
    declares_json = is_json(content_type) if content_type is not None else "origin" not in request.headers
    if not declares_json:
        raise RequestError(
            f"the body is declared as {content_type or 'nothing':.100}: send JSON, with content-type: application/json",
            status=415,
            code="unsupported_media_type",
        )


# The type by which curl calls data that it is given, and headers that browsers send with requests of pages.
FORM_TYPE, OF_PAGES = "application/x-www-form-urlencoded", ("origin", "referer", "sec-fetch-site")


def check_told_type(request: Request) -> None:
    """Raise RequestError (415) as check_type does, except for JSON that curl calls a form, as Ollama's users send it. A
    page's form stays refused: a browser says that it is one."""
    is_form = request.headers.getone("content-type", "").partition(";")[0].strip().lower() == FORM_TYPE
    if not is_form or any(name in request.headers for name in OF_PAGES):
        check_type(request)


class BodyReader:
    """Reader of all requests' bodies, which are recorded as `in_flight` while they are parsed. `most` returns the limit
    in bytes of one body; with `strict`, fields without effect are refused."""

    def __init__(self, most: Callable[[], int], in_flight: InFlightBodies, strict: bool = False) -> None:
        self.most, self.in_flight, self.strict = most, in_flight, strict
        self.executor = OrderedExecutor()
        self.buffered = SharedRoom(MOST_BUFFERED)

    async def read(
        self,
        request: Request,
        understand: Callable[[dict[str, Any]], T],
        check: Callable[[Request], None] = check_type,
    ) -> T:
        """Return `understand` of the parsed object, whose content type passes this check; a large body is parsed in a
        thread. Of a request that continues a stream the body is that of the request which began it, and its own is
        left aside.

        Raises RequestError (413 for a body that is too large, 415 for one declared as another type), and Unavailable
        where other bodies take too much memory.
        """
        context = getattr(request.ctx, "resume", None)
        share = BufferShare(self)
        try:
            body = None if context is None else context.body
            if body is None:
                check(request)
                is_gzip = is_packed(request)
                with timed(RECEIVE):
                    body = await self.receive(request, share)
                body = await self.unpack(body, share) if is_gzip else body
            else:
                await self.receive(request, share)
            if context is not None:
                context.body = body
            self.in_flight.note(request, body)
            work = partial(parse_and, understand, body)
            return await self.executor.run(work, len(body)) if len(body) > LARGE_BODY else work()
        finally:
            share.give_back()

    async def read_form(self, request: Request, understand: Callable[[Mapping[str, FormPart]], T]) -> T:
        """Do what `read` does with a multipart form."""
        boundary = check_form_type(request)
        share = BufferShare(self)
        try:
            with timed(RECEIVE):
                body = await self.receive(request, share)
            self.in_flight.note(request, body)
            work = partial(form_and, understand, body, boundary)
            return await self.executor.run(work, len(body)) if len(body) > LARGE_BODY else work()
        finally:
            share.give_back()

    def ignored(self, request: Request) -> IgnoredFields:
        """Return where to note this request's fields without effect, which every answer to it will name."""
        ignored_fields: IgnoredFields = IgnoredFields(self.strict)
        request.ctx.ignored = ignored_fields
        return ignored_fields

    async def receive(self, request: Request, share: "BufferShare") -> bytes:
        most, body = self.most(), bytearray()
        content_length = request.headers.getone("content-length", "")
        if content_length.isdecimal() and int(content_length) > most:
            raise too_large(most)
        stream: Any = request.stream
        async for piece in stream:
            body += piece
            if len(body) > most:
                raise too_large(most)
            share.grow(len(body))
        return bytes(body)

    async def unpack(self, gzip_body: bytes, share: "BufferShare") -> bytes:
        """Return the unpacked body, to which the limits apply as to any other. It is unpacked in pieces, and in a
        thread unless both forms are small."""
        most, body, source = self.most(), bytearray(), PackedBody(gzip_body)
        if len(gzip_body) <= LARGE_BODY:
            body += source.read(LARGE_BODY)
        while not source.ended:
            body += await self.executor.run(partial(source.read, UNPACKED_PIECE), len(gzip_body))
            if len(body) > most:
                raise too_large(most)
            share.grow(len(gzip_body) + len(body))
        if len(body) > most:
            raise too_large(most)
        return bytes(body)


class BufferShare:
    """One body's share of MOST_BUFFERED."""

    def __init__(self, bodies: BodyReader) -> None:
        self.room, self.caller, self.size = bodies.buffered, CALLER.get(), 0

    def grow(self, size: int) -> None:
        """Grow the share to that of a body of this size. Raises Unavailable where it does not fit."""
        growth = max(0, size - LARGE_BODY) - self.size
        if growth < 0:
            self.room.give_back(self.caller, -growth)
        elif growth and not self.room.take(self.caller, growth):
            raise Unavailable("too many large requests are being received: try again in a moment", RETRY_SECONDS)
        self.size += growth

    def give_back(self) -> None:
        self.room.give_back(self.caller, self.size)
        self.size = 0


def understood(request: Request) -> None:
    """Clear the record of a request's body, all of which has been read. It would be cleared at the handler's end."""
    clear: Callable[[], None] = request.ctx.understood
    clear()


def parse_and(understand: Callable[[dict[str, Any]], T], body: bytes) -> T:
    return understand(parse_body(body))


def form_and(understand: Callable[[Mapping[str, FormPart]], T], body: bytes, boundary: bytes) -> T:
    return understand(read_form(body, boundary))


def too_large(most: int) -> RequestError:
    return RequestError(f"the body is larger than {most} bytes, which is all that is taken: send less", status=413)


def check_form_type(request: Request) -> bytes:
    """Return the boundary of a form. Raises RequestError (415) for another content type, and for a form that a page
    sent: a browser sends forms to any server without a preflight."""
    content_type = request.headers.getone("content-type", None)
    boundary = boundary_of(content_type or "")
    if boundary is None:
        says = f"the body is declared as {content_type or 'nothing':.100}: send multipart/form-data with a boundary"
    elif "origin" in request.headers:
        says = "forms from pages are not taken: send it from a program"
    elif is_packed(request):
        says = "the form is encoded as gzip: send it plain"
    else:
        return boundary
    raise RequestError(says, status=415, code="unsupported_media_type")


def is_packed(request: Request) -> bool:
    """Return whether the body is gzip. Raises RequestError (415) for any other content coding."""
    coding = ", ".join(request.headers.getall("content-encoding", [])).strip().lower()
    if coding in ("", "identity"):
        return False
    if coding not in ("gzip", "x-gzip"):
        raise RequestError(
            f"the body is encoded as {ascii(coding)[1:-1]:.100}: send it with content-encoding: gzip, or plain",
            status=415,
            code="unsupported_media_type",
        )
    return True


def is_json(content_type: str) -> bool:
    """Return whether this content type is JSON in UTF-8."""
    kind, _, parameters = content_type.partition(";")
    charset = CHARSET.search(parameters)
    return bool(JSON_TYPE.fullmatch(kind.strip())) and (charset is None or charset[1].lower() in UTF_8)
