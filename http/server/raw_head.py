# SPDX-License-Identifier: Apache-2.0
"""The syntax of a request's head and of its chunks (RFC 9112), checked on the bytes as they came.

A front and this server must see the same end of every request: what the parser behind this would read in its own way
(a blank before a colon, a second length, an unusual size of a chunk) is refused. Pure.
"""

import re

MAX_HEAD_BYTES = 16384
"""The most that Sanic can read; its default is half of this."""
# Control characters, and line ends other than CR LF. A CR at the very end may be followed by its LF later.
FOREIGN = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?=[^\n])")
TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
METHOD = re.compile(TOKEN)
NAME = re.compile(TOKEN)
TARGET = re.compile(rb"\*|/[\x21-\x7e]*|https?://[^\x00-\x20/?#\x7f-\xff]+/[\x21-\x7e]*", re.IGNORECASE)
VERSIONS = (b"HTTP/1.1", b"HTTP/1.0")
# The first bytes of a chunk are the line end of the head or of the chunk before.
CHUNK = re.compile(rb"\r\n[0-9A-Fa-f]{1,16}(?:;[\t\x20-\x7e]*)?\r\n")
MOST_CHUNK_LINE = 64
LENGTH = re.compile(rb"[0-9]{1,18}")
ONCE = (b"content-length", b"transfer-encoding", b"host")


def foreign_byte(data: bytes | bytearray, begin: int, end: int) -> str | None:
    """Return why the bytes up to `end` belong to no head, as far as one byte and its neighbours tell. Those before
    `begin` have been looked at."""
    match = FOREIGN.search(data, max(0, begin - 1), end)
    if match is None:
        return None
    byte_name = {b"\r": "a CR without LF", b"\n": "an LF without CR"}.get(
        match[0], f"the control character {match[0][0]}"
    )
    return f"its head has {byte_name}"


def head_fault(head: bytes) -> str | None:
    """Return why a head, without the empty line at its end, is refused; None for one that is well-formed."""
    first, *lines = head.split(b"\r\n")
    return line_fault(first) or fields_fault(lines, first.endswith(b"1.0"))


def line_fault(line: bytes) -> str | None:
    """Return why a request line is refused."""
    parts = line.split(b" ")
    if len(parts) != 3 or parts[2] not in VERSIONS:
        return "its first line is not METHOD PATH HTTP/1.1"
    if not METHOD.fullmatch(parts[0]):
        return "its method is no word"
    return None if TARGET.fullmatch(parts[1]) else "its target is no path that begins with /, in ASCII"


def fields_fault(lines: list[bytes], is_old: bool) -> str | None:
    """Return why header fields are refused. `is_old` is for HTTP/1.0, which knows no Transfer-Encoding."""
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not NAME.fullmatch(name):
            return "a header is not NAME: VALUE on one line, without a blank before the colon"
        name = name.lower()
        if name in ONCE and name in headers:
            return f"it has the header {name.decode()} twice"
        headers[name] = value.strip(b" \t")
    return framing_fault(headers, is_old)


def framing_fault(headers: dict[bytes, bytes], is_old: bool) -> str | None:
    """Return why it is not certain where the body ends."""
    length, coding = headers.get(b"content-length"), headers.get(b"transfer-encoding")
    if coding is not None and (length is not None or is_old or coding != b"chunked"):
        return "Transfer-Encoding is chunked, alone, without Content-Length and in HTTP/1.1, or absent"
    if length is not None and not LENGTH.fullmatch(length):
        return "Content-Length is no number"
    return None


def chunk_fault(data: bytes | bytearray) -> bool | None:
    """Return whether the line that begins a chunk is malformed; None while it is incomplete."""
    end = data.find(b"\r\n", 2, MOST_CHUNK_LINE)
    if end == -1:
        return True if len(data) >= MOST_CHUNK_LINE else None
    return CHUNK.fullmatch(data, 0, end + 2) is None
