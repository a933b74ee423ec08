# SPDX-License-Identifier: Apache-2.0
"""JSON Schema of leases on prefixes. Tests validate real ones against it."""

from pontil.http.stream.reply_schema import COUNT, TEXT, USAGE, closed, constant, many, nullable

BYTE_SECONDS = closed({"granted": COUNT, "held": COUNT, "released": COUNT, "refunded": COUNT})
PREFIX = closed(
    {
        "id": TEXT,
        "object": constant("prefix"),
        "model": TEXT,
        "state": {"enum": ["held", "moving", "expired", "released", "refunded"]},
        "reason": nullable(TEXT),
        "tokens": COUNT,
        "bytes": COUNT,
        "ttl": COUNT,
        "created_at": COUNT,
        "expires_at": COUNT,
        "byte_seconds": BYTE_SECONDS,
        "usage": USAGE,
    },
    ("usage",),
)
PREFIXES = closed({"object": constant("list"), "data": many(PREFIX)})
