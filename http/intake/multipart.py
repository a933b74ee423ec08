# SPDX-License-Identifier: Apache-2.0
"""Bodies of the type multipart/form-data (RFC 7578): named parts with a boundary between them. Pure.

sanic's own parser is no substitute: it splits wherever the bytes of the boundary stand, in a file too, reads a body
that is cut off as an empty form, has no bound of parts or names, and raises ValueError for a line without a colon.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pontil.runtime.errors import RequestError

MOST_PARTS = 64
MOST_HEAD = 4096
BOUNDARY = re.compile(r"boundary\s*=\s*(?:\"([^\"]{1,70})\"|([^\s;\",]{1,70}))", re.IGNORECASE)
NAME = re.compile(r";\s*name\s*=\s*(?:\"([^\"]*)\"|([^\s;\"]+))", re.IGNORECASE)
FILE = re.compile(r";\s*filename\*?\s*=", re.IGNORECASE)
FILE_NAME = re.compile(r";\s*filename\s*=\s*(?:\"([^\"]*)\"|([^\s;\"]+))", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FormPart:
    """One part: a field, or the contents of a file."""

    data: bytes = field(repr=False)
    is_file: bool

    @property
    def text(self) -> str | None:
        """The value of a field; None for a file and for what is no UTF-8."""
        try:
            return None if self.is_file else self.data.decode()
        except UnicodeDecodeError:
            return None


def boundary_of(content_type: str) -> bytes | None:
    """Return the boundary that a content type states; None for another type."""
    kind, _, parameters = content_type.partition(";")
    if kind.strip().lower() != "multipart/form-data":
        return None
    match = BOUNDARY.search(parameters)
    return None if match is None else (match[1] or match[2]).encode("utf-8", "surrogateescape")


def read_form(body: bytes, boundary: bytes) -> Mapping[str, FormPart]:
    """Return the parts by name. Raises RequestError for what is no such body, or has a name twice."""
    parts: dict[str, FormPart] = {}
    mark = b"--" + boundary
    place = 0 if body.startswith(mark) else find(body, b"\r\n" + mark, 0) + 2
    for _ in range(MOST_PARTS + 1):
        place += len(mark)
        if body.startswith(b"--", place):
            return parts
        begin = find(body, b"\r\n", place) + 2
        if body[place : begin - 2].strip(b" \t"):
            raise broken("a boundary is followed by other bytes")
        end = find(body, b"\r\n" + mark, begin - 2)
        name, part = read_form_part(body, begin, end)
        if name in parts:
            raise RequestError(f"{name:.64} is there twice: send it once", param=name[:64])
        parts[name] = part
        place = end + 2
    raise broken(f"it has more than {MOST_PARTS} parts")


def read_form_part(body: bytes, begin: int, end: int) -> tuple[str, FormPart]:
    """Read the part between two places."""
    split = body.find(b"\r\n\r\n", begin, min(end, begin + MOST_HEAD))
    if split < 0:
        raise broken("a part has no headers, or too long ones")
    name, disposition = read_head(body[begin:split])
    return name, FormPart(body[split + 4 : end], FILE.search(disposition) is not None)


def read_head(head: bytes) -> tuple[str, str]:
    """Return a part's name, of which that of a list ends in [], and its disposition."""
    lines = head.decode("utf-8", "replace").split("\r\n")
    disposition = next((line for line in lines if line.lower().startswith("content-disposition:")), "")
    name = NAME.search(disposition)
    if name is None:
        raise broken("a part has no name")
    return (name[1] or name[2] or ""), disposition


def find(body: bytes, delimiter: bytes, begin: int) -> int:
    place = body.find(delimiter, max(0, begin))
    if place < 0:
        raise broken("its closing boundary is missing")
    return place


def broken(why: str) -> RequestError:
    return RequestError(f"the body is no whole multipart form: {why}. Send it as a browser sends a form with a file")
