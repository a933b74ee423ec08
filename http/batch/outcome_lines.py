# SPDX-License-Identifier: Apache-2.0
"""The lines that tell what became of a batch's lines, in the forms of both APIs. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pontil.http.anthropic.error_shape import is_of_messages, message_error
from pontil.http.batch.input_lines import InputLine
from pontil.http.store.batch_book import CANCELLED, DONE, ERRORED, ERRORS, EXPIRED, NOWHERE, OUTPUT, REVOKED, BatchRow

NO_KEY_LEFT = "The API key of this batch was revoked before all of its requests were executed."
WHY = {
    EXPIRED: ("batch_expired", "This request could not be executed before the completion window expired."),
    REVOKED: ("invalid_api_key", "The API key of this batch was revoked before this request was executed."),
}


@dataclass(frozen=True, slots=True)
class LineOutcome:
    """The outcome of a line, and the line that tells it in the batch's file of this kind."""

    number: int
    outcome: str
    kind: str
    told: bytes


def json_bytes(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def answered(batch: BatchRow, line: InputLine, status: int, request_id: str, body: bytes) -> LineOutcome:
    """Return the outcome of a line that was asked. The `body` is one line of JSON."""
    outcome = DONE if status < 400 else ERRORED
    if is_of_messages(batch.endpoint):
        name = "message" if outcome == DONE else "error"
        kind = "succeeded" if outcome == DONE else "errored"
        result = b'{"type": "%b", "%b": %b}' % (kind.encode(), name.encode(), body)
        return LineOutcome(line.number, outcome, OUTPUT, message_line(line, result))
    response = b'{"status_code": %d, "request_id": %b, "body": %b}' % (status, json_bytes(request_id), body)
    return LineOutcome(
        line.number, outcome, OUTPUT if outcome == DONE else ERRORS, openai_line(batch, line, response, b"null")
    )


def refused(batch: BatchRow, line: InputLine) -> LineOutcome:
    """Return the outcome of a line that cannot be asked."""
    assert line.error is not None
    if is_of_messages(batch.endpoint):
        return errored_message(line, ERRORED, line.error.message, 400)
    error = json_bytes({"code": line.error.code, "message": line.error.message})
    return LineOutcome(line.number, ERRORED, ERRORS, openai_line(batch, line, b"null", error))


def left_out(batch: BatchRow, line: InputLine, outcome: str) -> LineOutcome:
    """Return the outcome of a line that is not asked any more."""
    if is_of_messages(batch.endpoint):
        if outcome == REVOKED:
            return errored_message(line, outcome, WHY[outcome][1], 401)
        kind = {CANCELLED: b"canceled", EXPIRED: b"expired"}[outcome]
        return LineOutcome(line.number, outcome, OUTPUT, message_line(line, b'{"type": "%b"}' % kind))
    if outcome == CANCELLED:
        return LineOutcome(line.number, outcome, NOWHERE, b"")
    code, message = WHY[outcome]
    return LineOutcome(
        line.number, outcome, ERRORS, openai_line(batch, line, b"null", json_bytes({"code": code, "message": message}))
    )


def errored_message(line: InputLine, outcome: str, says: str, status: int) -> LineOutcome:
    error = json_bytes(message_error(says, status, None))
    result = b'{"type": "errored", "error": %b}' % error
    return LineOutcome(line.number, outcome, OUTPUT, message_line(line, result))


def message_line(line: InputLine, result: bytes) -> bytes:
    return b'{"custom_id": %b, "result": %b}\n' % (json_bytes(line.custom_id), result)


def openai_line(batch: BatchRow, line: InputLine, response: bytes, error: bytes) -> bytes:
    name = json_bytes(f"batch_req_{batch.id.rpartition('_')[2]}_{line.number}")
    return b'{"id": %b, "custom_id": %b, "response": %b, "error": %b}\n' % (
        name,
        json_bytes(line.custom_id),
        response,
        error,
    )


def counted(counts: Mapping[str, int], *outcomes: str) -> int:
    return sum(counts.get(outcome, 0) for outcome in outcomes)
