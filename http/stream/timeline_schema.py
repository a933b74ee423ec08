# SPDX-License-Identifier: Apache-2.0
"""Schemas of requests' timelines."""

from pontil.http.schema.parameter import Schema
from pontil.http.stream.reply_schema import COUNT, NUMBER, TEXT, closed, many, nullable
from pontil.runtime.timeline.timeline import CANCELLED, COMPLETE, FAILED, OPEN

ROW: dict[str, Schema] = {
    "id": TEXT,
    "received_at": NUMBER,
    "model": TEXT,
    "route": TEXT,
    "caller": TEXT,
    "state": {"enum": [OPEN, COMPLETE, FAILED, CANCELLED]},
    "finish": nullable(TEXT),
    "prompt_tokens": COUNT,
    "cached_tokens": COUNT,
    "completion_tokens": COUNT,
    "attempts": COUNT,
    "first_token_seconds": nullable(NUMBER),
    "seconds": NUMBER,
    "workers": many(TEXT),
    "stage": TEXT,
    "trace_id": TEXT,
}
MAY_LACK = ("stage", "trace_id")
TIME_SPAN = closed(
    {
        "name": TEXT,
        "process": TEXT,
        "begin": NUMBER,
        "end": nullable(NUMBER),
        "attempt": nullable(COUNT),
        "tokens": COUNT,
        "bytes": COUNT,
        "blocks": COUNT,
    },
    ("tokens", "bytes", "blocks"),
)
TIME_EVENT = closed(
    {"name": TEXT, "process": TEXT, "at": NUMBER, "attempt": nullable(COUNT), "reason": TEXT}, ("reason",)
)
GAPS = closed({"begin": NUMBER, "seconds": many(NUMBER), "largest": many(NUMBER), "steps": many(COUNT)})
LARGEST = closed({"name": TEXT, "seconds": NUMBER})
PARTS = {"spans": many(TIME_SPAN), "events": many(TIME_EVENT), "gaps": GAPS, "largest": nullable(LARGEST)}
REQUESTS = closed({"requests": many(closed(ROW, MAY_LACK))})
TIMELINE = closed(ROW | PARTS, MAY_LACK)
TIMELINES: Schema = {"anyOf": [TIMELINE, closed({"requests": many(TIMELINE)})]}
