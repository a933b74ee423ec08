# SPDX-License-Identifier: Apache-2.0
"""Unpacking of a body that was sent with content-encoding: gzip (RFC 1952), piece by piece. Pure."""

import zlib

from pontil.runtime.errors import RequestError

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
        found: list[bytes] = []
        while size and not self.ended:
            if not self.left:
                self.left = bytes(self.packed[self.at : self.at + INPUT_PIECE])
                self.at += len(self.left)
            # Without further input there may still be output that had no room before.
            found.append(self.unpacker.decompress(self.left, size))
            if not self.left and not found[-1]:
                raise RequestError("the body ends within its gzip data: send it whole")
            self.left = self.unpacker.unconsumed_tail
            size -= len(found[-1])
        if self.ended and (self.unpacker.unused_data or self.at < len(self.packed)):
            raise RequestError("the body goes on after its gzip data: send one gzip file")
        return found
