# SPDX-License-Identifier: Apache-2.0
"""HTTP responses as a client reads them from the bytes of a connection."""

# The leave to send a body, before the answer.
CONTINUE = b"HTTP/1.1 100 "


class HttpReader:
    """One response. `body` has what came of it, without chunk marks; `complete` is true at its end, and `raw` then has
    what came behind it."""

    def __init__(self) -> None:
        # False for the answer to HEAD, which states a length and has no body.
        self.has_body = True
        self.raw, self.body = b"", bytearray()
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.complete = False
        # Bytes of the present chunk, or of the whole body, that have not come yet.
        self.missing = 0

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the connection. Return what they add to the body."""
        self.raw += data
        if self.status is None and not self.read_head():
            return b""
        before = len(self.body)
        while not self.complete and self.read_part():
            pass
        return bytes(self.body[before:])

    def read_head(self) -> bool:
        head, mark, rest = self.raw.partition(b"\r\n\r\n")
        if not mark:
            return False
        if head.startswith(CONTINUE):
            self.raw = rest
            return self.read_head()
        first, *lines = head.decode().split("\r\n")
        self.raw, self.status = rest, int(first.split(" ")[1])
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if not self.is_chunked:
            self.missing = int(self.headers.get("content-length", 0)) if self.has_body else 0
            self.complete = self.missing == 0
        return True

    @property
    def is_chunked(self) -> bool:
        return self.headers.get("transfer-encoding") == "chunked"

    def read_part(self) -> bool:
        """Read what is there of the body; return whether there may be more."""
        if self.missing:
            part, self.raw = self.raw[: self.missing], self.raw[self.missing :]
            self.body += part
            self.missing -= len(part)
            self.complete = not self.missing and not self.is_chunked
            return bool(part)
        if not self.is_chunked:
            return False
        raw = self.raw.removeprefix(b"\r\n")
        line, mark, rest = raw.partition(b"\r\n")
        if not mark:
            return False
        if int(line, 16) == 0:
            # The end of the body is an empty line behind the last chunk.
            self.complete = rest.startswith(b"\r\n")
            self.raw = rest[2:] if self.complete else self.raw
            return False
        self.raw, self.missing = rest, int(line, 16)
        return True
