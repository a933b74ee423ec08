# SPDX-License-Identifier: Apache-2.0
"""Records: requests of clients with the receipts of their answers, to be sent to another release.

A record is JSON lines. The first says what it is, and the last how many requests there are and the SHA-256 of all
before it, so that a file that was cut is none. Each line between is one request, signed as a whole by the server's
receipt key: its body and what was computed for it belong together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pontil.runtime.errors import PontilError
from pontil.runtime.receipts.chain import MARK_BYTES
from pontil.runtime.receipts.statement import Receipt, ReceiptError, read_hex

VERSION = 1
# In front of what is signed, so that no receipt is a request of a record.
DOMAIN = b"pontil record 1\n"
BEGIN, END = "pontil_record", "end"
# Of lines that are sent and are none of a file: how many requests were left out so far.
LEFT_OUT = "left_out"
LEFT_OUT_LINE = b'{"left_out":'
FIELDS = frozenset({"recording", "number", "at", "path", "key", "body", "answers", "public_key", "signature"})
# Bytes of a body that is recorded, and of the line of one request.
MOST_BODY = 1 << 20
MOST_LINE = 8 << 20
MOST_REQUESTS = 100_000
# The paths whose requests are recorded; no file can have a request sent to another one.
PATHS = frozenset(
    {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/messages",
        "/api/chat",
        "/api/generate",
        "/generate",
        "/invocations",
    }
)
# The part of a statement that a redacted record has: no text and no id of a client.
DIGESTS = (
    "model_fingerprint",
    "tokenizer",
    "version",
    "kernels",
    "prompt_tokens",
    "completion_tokens",
    "finish_reason",
    "prompt_sha256",
    "tokens_sha256",
    "chain",
)


class RecordError(PontilError):
    """The reason why a file is no record, or one that was cut or changed."""


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """One choice: its receipt with all ids, and the marks of its logits (runtime/receipts/chain.py), empty where they
    are not known."""

    receipt: Receipt
    marks: bytes = b""

    def to_json(self) -> dict[str, Any]:
        return {"receipt": self.receipt.to_json(), "marks": self.marks.hex()}

    @property
    def digests(self) -> dict[str, Any]:
        """The part of it that a redacted record has."""
        return {name: self.receipt.statement[name] for name in DIGESTS}

    @classmethod
    def from_json(cls, receipt: Any, marks: Any) -> RecordedAnswer:
        """Return an answer whose parts fit together. Raises ReceiptError."""
        made = Receipt.from_json(receipt)
        if made.prompt is None:
            raise ReceiptError("a receipt has no prompt ids: it was changed")
        known_marks = read_hex({"marks": marks}, "marks", MARK_BYTES * len(made.tokens)) if marks else b""
        return cls(made, known_marks)


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request, whose `number` no other one of its record has: received `at` this second at the `path`, from the API
    key of that name. Its `body` is None in a redacted record, which has no answers either."""

    recording: str
    number: int
    at: int
    path: str
    key: str
    body: dict[str, Any] | None
    answers: Sequence[RecordedAnswer]

    def to_json(self, *, redacted: bool) -> dict[str, Any]:
        """Return what is signed."""
        head = {"recording": self.recording, "number": self.number, "at": self.at, "path": self.path, "key": self.key}
        if redacted:
            return head | {"body": None, "answers": [answer.digests for answer in self.answers]}
        return head | {"body": self.body, "answers": [answer.to_json() for answer in self.answers]}

    @property
    def seeds(self) -> list[int]:
        """The seed of each of its prompts."""
        receipts = [answer.receipt for answer in self.answers]
        return [receipt.params.seed for receipt in receipts if receipt.statement["choice"] == 0]

    @property
    def adapter(self) -> str:
        """The digest of the adapter that it asked for; empty: none."""
        return self.answers[0].receipt.adapter if self.answers else ""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RecordedRequest:
        """Return the request of a line whose signature was checked, so that a server has written it. Raises
        RecordError."""
        body, whole = data["body"], data["body"] is not None
        numbers = all(type(data[name]) is int and data[name] >= 0 for name in ("number", "at"))
        texts = all(type(data[name]) is str for name in ("recording", "path", "key"))
        if not (
            numbers
            and texts
            and data["path"] in PATHS
            and isinstance(data["answers"], list)
            and isinstance(body, dict | None)
        ):
            raise RecordError("a field of it has a value that no record has")
        try:
            answers = [RecordedAnswer.from_json(one["receipt"], one["marks"]) for one in data["answers"] if whole]
        except (KeyError, TypeError, ReceiptError) as error:
            raise RecordError(f"it has a receipt that does not hold ({error})") from None
        return cls(data["recording"], data["number"], data["at"], data["path"], data["key"], body, answers)


@dataclass(frozen=True, slots=True)
class Record:
    """A whole record: its requests in their order, and by which key they are signed."""

    requests: Sequence[RecordedRequest]
    public_key: bytes | None

    @property
    def replayable(self) -> list[RecordedRequest]:
        return [request for request in self.requests if request.body is not None]


def first_line(recording: str, *, redacted: bool) -> bytes:
    return line_of({BEGIN: VERSION, "recording": recording, "redacted": redacted})


def last_line(requests: int, digest: str) -> bytes:
    return line_of({END: {"requests": requests, "sha256": digest}})


def line_of(data: Mapping[str, Any]) -> bytes:
    """Return a line in the one form in which it is signed. Raises ValueError for numbers that JSON has not."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def signed_part(line: Mapping[str, Any]) -> bytes:
    """Return what the signature in a line is of. Raises RecordError."""
    try:
        return DOMAIN + line_of({name: value for name, value in line.items() if name != "signature"})
    except ValueError:
        raise RecordError("a request of it has a number that JSON has not: it was changed") from None


def lines_of(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the requests' lines of a file that is whole. Raises RecordError."""
    lines = data.splitlines(keepends=True)
    begin = object_of(lines[0] if lines else b"")
    if BEGIN not in begin:
        raise RecordError("it is no record: `pontil record` makes one")
    if begin[BEGIN] != VERSION:
        raise RecordError(f"it is not of version {VERSION}, the one known here: use a newer pontil")
    end = object_of(lines[-1]).get(END)
    if not isinstance(end, dict):
        raise RecordError("its last line is missing: it was cut, or is still being written")
    between = lines[1:-1]
    digest = hashlib.sha256(b"".join(lines[:-1])).hexdigest()
    if end.get("requests") != len(between) or end.get("sha256") != digest or len(between) > MOST_REQUESTS:
        raise RecordError("it is damaged: its requests are not those that its last line states")
    for line in between:
        request = object_of(line)
        if request.keys() != FIELDS or request["recording"] != begin.get("recording"):
            raise RecordError("a line of it is no request of this record: it was changed")
        yield request


def object_of(line: bytes) -> dict[str, Any]:
    """Return the object in a line; an empty one for what is none."""
    try:
        data = json.loads(line) if len(line) <= MOST_LINE else None
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
