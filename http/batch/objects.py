# SPDX-License-Identifier: Apache-2.0
"""Files and batches as both APIs show them. Pure."""

import json
from datetime import datetime, timezone
from typing import Any

from pontil.http.batch.outcome_lines import NO_KEY_LEFT, WHY, counted
from pontil.http.store.batch_book import (
    CANCELLED,
    CANCELLING,
    COMPLETED,
    DONE,
    ERRORED,
    EXPIRED,
    FAILED,
    REVOKED,
    RUNNING,
    BatchProgress,
    BatchRow,
    FileRow,
)

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def file_object(file: FileRow, size: int) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": size,
        "created_at": file.created,
        "expires_at": None,
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def batch_object(batch: BatchRow, progress: BatchProgress) -> dict[str, Any]:
    """Return a batch in OpenAI's form. Its files are named once there is something in them."""
    states = (COMPLETED, CANCELLED, EXPIRED, FAILED)
    ended = {state: batch.ended if batch.state == state else None for state in states}
    error = {"code": WHY[REVOKED][0], "message": NO_KEY_LEFT, "param": None, "line": None}
    counts = progress.counts
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": {"object": "list", "data": [error]} if batch.state == FAILED else None,
        "input_file_id": batch.input,
        "completion_window": window_text(batch.window),
        "status": batch.state,
        "output_file_id": batch.output if progress.places.get("output") else None,
        "error_file_id": batch.errors if progress.places.get("errors") else None,
        "created_at": batch.created,
        "in_progress_at": batch.created,
        "expires_at": batch.expires,
        "finalizing_at": batch.ended,
        "completed_at": ended[COMPLETED],
        "failed_at": ended[FAILED],
        "expired_at": ended[EXPIRED],
        "cancelling_at": batch.cancelled,
        "cancelled_at": ended[CANCELLED],
        "request_counts": {
            "total": batch.lines,
            "completed": counted(counts, DONE),
            "failed": counted(counts, ERRORED, EXPIRED, REVOKED),
        },
        "metadata": json.loads(batch.metadata),
    }


def message_batch_object(batch: BatchRow, progress: BatchProgress, url: str) -> dict[str, Any]:
    """Return a batch in Anthropic's form. Its results are at the `url`."""
    counts, states = progress.counts, {RUNNING: "in_progress", CANCELLING: "canceling"}
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": states.get(batch.state, "ended"),
        "request_counts": {
            "processing": max(0, batch.lines - progress.settled),
            "succeeded": counted(counts, DONE),
            "errored": counted(counts, ERRORED, REVOKED),
            "canceled": counted(counts, CANCELLED),
            "expired": counted(counts, EXPIRED),
        },
        "created_at": date_text(batch.created),
        "expires_at": date_text(batch.expires),
        "ended_at": date_text(batch.ended),
        "cancel_initiated_at": date_text(batch.cancelled),
        "archived_at": None,
        "results_url": url if batch.is_over else None,
    }


def date_text(seconds: int | None) -> str | None:
    """Return a time as RFC 3339 writes it."""
    return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")


def window_seconds(text: str) -> int | None:
    """Return the seconds of a window like 24h; None for what is none."""
    count, unit = text[:-1], text[-1:]
    if not (count.isascii() and count.isdecimal() and len(count) < 7 and unit in SECONDS and int(count)):
        return None
    return int(count) * SECONDS[unit]


def window_text(seconds: int) -> str:
    unit = next((unit for unit in ("h", "m") if seconds % SECONDS[unit] == 0), "s")
    return f"{seconds // SECONDS[unit]}{unit}"
