# SPDX-License-Identifier: Apache-2.0
"""JSON Schema of files and batches. Tests validate real ones against it."""

from pontil.http.schema.parameter import Schema
from pontil.http.stream.reply_schema import COUNT, TEXT, closed, constant, many, nullable

FILE = closed(
    {
        "id": TEXT,
        "object": constant("file"),
        "bytes": COUNT,
        "created_at": COUNT,
        "expires_at": nullable(COUNT),
        "filename": TEXT,
        "purpose": TEXT,
        "status": constant("processed"),
        "status_details": nullable(TEXT),
    }
)
DELETED_FILE = closed({"id": TEXT, "object": constant("file"), "deleted": constant(True)})
TIMES = (
    "in_progress_at",
    "expires_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)
BATCH_ERROR = closed({"code": TEXT, "message": TEXT, "param": nullable(TEXT), "line": nullable(COUNT)})
BATCH = closed(
    {
        "id": TEXT,
        "object": constant("batch"),
        "endpoint": TEXT,
        "errors": nullable(closed({"object": constant("list"), "data": many(BATCH_ERROR)})),
        "input_file_id": TEXT,
        "completion_window": TEXT,
        "status": {"enum": ["in_progress", "cancelling", "completed", "cancelled", "expired", "failed"]},
        "output_file_id": nullable(TEXT),
        "error_file_id": nullable(TEXT),
        "created_at": COUNT,
        "request_counts": closed({"total": COUNT, "completed": COUNT, "failed": COUNT}),
        "metadata": nullable({"type": "object", "additionalProperties": TEXT}),
    }
    | {name: nullable(COUNT) for name in TIMES}
)


def listed(item: Schema) -> Schema:
    ends = {"first_id": nullable(TEXT), "last_id": nullable(TEXT), "has_more": {"type": "boolean"}}
    return closed({"object": constant("list"), "data": many(item)} | ends)


FILES, BATCHES = listed(FILE), listed(BATCH)
DATE: Schema = {"type": "string", "format": "date-time"}
COUNTS = ("processing", "succeeded", "errored", "canceled", "expired")
MESSAGE_BATCH = closed(
    {
        "id": TEXT,
        "type": constant("message_batch"),
        "processing_status": {"enum": ["in_progress", "canceling", "ended"]},
        "request_counts": closed(dict.fromkeys(COUNTS, COUNT)),
        "created_at": DATE,
        "expires_at": DATE,
        "ended_at": nullable(DATE),
        "cancel_initiated_at": nullable(DATE),
        "archived_at": nullable(DATE),
        "results_url": nullable(TEXT),
    }
)
MESSAGE_BATCHES = closed(
    {
        "data": many(MESSAGE_BATCH),
        "has_more": {"type": "boolean"},
        "first_id": nullable(TEXT),
        "last_id": nullable(TEXT),
    }
)
DELETED_BATCH = closed({"id": TEXT, "type": constant("message_batch_deleted")})
LINES: Schema = {"type": "string", "contentMediaType": "application/jsonl"}
PAGE: tuple[tuple[str, Schema], ...] = (
    ("limit", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}),
    ("after", TEXT),
)
FILE_PAGE: tuple[tuple[str, Schema], ...] = (
    ("limit", {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 10_000}),
    ("order", {"enum": ["asc", "desc"], "default": "desc"}),
    ("after", TEXT),
    ("purpose", TEXT),
)
MESSAGE_PAGE: tuple[tuple[str, Schema], ...] = (
    ("limit", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 20}),
    ("after_id", TEXT),
    ("before_id", TEXT),
)
