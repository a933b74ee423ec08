# SPDX-License-Identifier: Apache-2.0
"""The lines of a batch's input file, read one after the other: whatever a file holds, no more than a line of it is in
memory. What is wrong with a line is said of that line alone."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from pontil.http.schema.json_body import parse_body
from pontil.http.schema.reader import shown
from pontil.runtime.errors import RequestError

MOST_CUSTOM_ID = 512
DIGEST_BYTES = 16
# Bytes of a line that is too long which are read at a time, to be left out.
SKIPPED = 1 << 16
# Codes of what is wrong with a line.
NO_JSON, NO_ID, TWICE, OTHER_URL, NO_BODY = (
    "invalid_json_line",
    "invalid_custom_id",
    "duplicate_custom_id",
    "mismatched_url",
    "invalid_body",
)


@dataclass(frozen=True, slots=True)
class LineError:
    """The reason why a line is not asked."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class InputLine:
    """A line by its number among those that are not empty, from 1 on: a request's body as JSON, or what is wrong."""

    number: int
    custom_id: str | None
    body: bytes = field(default=b"", repr=False)
    error: LineError | None = None


def count_lines(path: Path, most: int) -> int:
    """Return how many lines are not empty, as a reader of lines of at most `most` bytes counts them. Raises OSError."""
    count = 0
    with path.open("rb") as file:
        for line in pieces(file, most):
            count += 1 if line is None or line.strip() else 0
    return count


def pieces(file: IO[bytes], most: int) -> Iterator[bytes | None]:
    """Yield the lines of a file, and None for one that has more than so many bytes."""
    while line := file.readline(most + 1):
        if len(line) <= most:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(SKIPPED)
        yield None


class LineReader:
    """The lines of one file for requests to `url`, each of at most `most` bytes. Names of lines are remembered as
    digests. A second reader of a file gives the same lines. Its `next_lines` blocks, and raises OSError."""

    def __init__(self, path: Path, url: str, most: int, *, of_messages: bool) -> None:
        self.url, self.most, self.of_messages = url, most, of_messages
        self.file = path.open("rb")
        self.lines = pieces(self.file, most)
        self.number = 0
        self.names: set[bytes] = set()

    def next_lines(self, count: int, done: "set[int]") -> list[InputLine]:
        """Return the next lines that are not `done`; none at the end of the file."""
        found: list[InputLine] = []
        for piece in self.lines:
            if piece is not None and not piece.strip():
                continue
            self.number += 1
            line = self.read(piece)
            if self.number not in done:
                found.append(line)
                if len(found) == count:
                    break
        return found

    def read(self, piece: bytes | None) -> InputLine:
        if piece is None:
            return self.wrong(None, NO_JSON, f"has more than {self.most} bytes, which is all that is taken")
        try:
            told = parse_body(piece.strip())
        except RequestError as error:
            return self.wrong(None, NO_JSON, f"is no JSON object: {str(error).replace('the body', 'it')}")
        name = told.get("custom_id")
        if not isinstance(name, str) or not 0 < len(name) <= MOST_CUSTOM_ID:
            return self.wrong(None, NO_ID, f"needs a custom_id, which is a text of 1 to {MOST_CUSTOM_ID} characters")
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()
        if digest in self.names:
            return self.wrong(name, TWICE, f"has the custom_id {shown(name)}, which an earlier line has: give its own")
        self.names.add(digest)
        objection = None if self.of_messages else self.objection(told)
        if objection is not None:
            return self.wrong(name, *objection)
        body = told.get("params" if self.of_messages else "body")
        if not isinstance(body, dict):
            return self.wrong(name, NO_BODY, "has no body, which is the JSON object of the request")
        if body.get("stream"):
            return self.wrong(name, NO_BODY, "asks for a stream, and answers of batches are whole: leave out stream")
        return InputLine(self.number, name, json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass"))

    def objection(self, told: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return what is wrong with a line of OpenAI's form beside its name and body."""
        method, url = told.get("method", "POST"), told.get("url")
        if method != "POST":
            return OTHER_URL, f"has the method {shown(method)}: only POST is taken"
        if url != self.url:
            return OTHER_URL, f"has the url {shown(url)}, and its batch has the endpoint {self.url}: send it in another"
        return None

    def wrong(self, name: str | None, code: str, says: str) -> InputLine:
        return InputLine(self.number, name, error=LineError(code, f"line {self.number} {says}"))

    def close(self) -> None:
        self.file.close()
