# SPDX-License-Identifier: Apache-2.0
"""The reply of a host to one GET request, read within limits, whatever it says of its own size."""

import asyncio
from collections.abc import Callable

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from pontil.runtime.stages.media.fetch_failed import FetchFailed

READ_BYTES = 64 << 10
# Most bytes beside the body's own: headers, those of informational replies, trailers, and what frames chunks. Chunks of
# a few bytes have as much again.
MOST_BESIDE = 64 << 10
GOOD, FIRST_FINAL = 200, 200
NO_HTTP = "was answered in no HTTP that is understood"
CUT_OFF = "ended before it was whole"


class HttpReply:
    """A reply while it is read. `status` and `headers`, names in small letters and the first of each name, are those of
    the final reply once `has_head`; the body follows in `parts` until it `is_whole`."""

    def __init__(self) -> None:
        self.parser = HttpResponseParser(self)
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.parts: list[bytes] = []
        self.length = self.beside = 0
        self.has_head = self.is_whole = False

    # The callbacks of the parser, which may raise nothing.
    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.has_head:
            self.headers.setdefault(name.lower(), value.strip())

    def on_headers_complete(self) -> None:
        if not self.has_head:
            self.status = self.parser.get_status_code()
            self.has_head = self.status >= FIRST_FINAL

    def on_body(self, body: bytes) -> None:
        if self.has_head and not self.is_whole:
            self.parts.append(body)
            self.length += len(body)

    def on_message_complete(self) -> None:
        self.is_whole = self.has_head
        if not self.has_head:
            self.headers.clear()

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the connection, or its end. Raises FetchFailed."""
        if not data:
            if not self.ends_with_connection:
                raise FetchFailed(CUT_OFF)
            self.is_whole = True
            return
        before = self.length
        try:
            self.parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            # The reply is over: nothing behind it is read.
            if not self.is_whole:
                raise FetchFailed(NO_HTTP) from None
        self.beside += len(data) - (self.length - before)
        if self.beside > MOST_BESIDE + self.length:
            raise FetchFailed(f"was answered with more than {MOST_BESIDE} bytes beside the file")

    @property
    def ends_with_connection(self) -> bool:
        """True if nothing but the end of the connection says where the body ends."""
        return self.has_head and not self.headers.keys() & {b"content-length", b"transfer-encoding"}

    def header(self, name: str) -> str:
        return self.headers.get(name.encode(), b"").decode("latin-1")

    def check_body(self, most: int) -> None:
        """Raise FetchFailed for a body that cannot be taken as it is."""
        packed = self.header("content-encoding").lower()
        if packed not in ("", "identity"):
            raise FetchFailed(f"was answered packed as {packed[:20]!r}, though its plain bytes were asked for")
        if self.header("transfer-encoding").lower() not in ("", "chunked"):
            raise FetchFailed(NO_HTTP)
        said = self.header("content-length")
        if said.isdecimal() and int(said[:20]) > most:
            raise FetchFailed(too_large(most))


def too_large(most: int) -> str:
    return f"is larger than {most} bytes, the most that are read: send a smaller image"


async def read_head(reader: asyncio.StreamReader) -> HttpReply:
    """Read until the final reply's headers are there. Raises FetchFailed and OSError."""
    reply = HttpReply()
    while not reply.has_head:
        reply.feed(await reader.read(READ_BYTES))
    return reply


async def read_body(reply: HttpReply, reader: asyncio.StreamReader, most: int, take: Callable[[int], None]) -> bytes:
    """Read the rest of a good reply, at most so many bytes. `take` is called with the number of bytes that came, before
    more are asked for, and may raise."""
    reply.check_body(most)
    taken = 0
    while True:
        if reply.length > most:
            raise FetchFailed(too_large(most))
        take(reply.length - taken)
        taken = reply.length
        if reply.is_whole:
            return b"".join(reply.parts)
        reply.feed(await reader.read(READ_BYTES))
