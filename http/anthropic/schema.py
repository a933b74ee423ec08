# SPDX-License-Identifier: Apache-2.0
"""JSON Schema of the replies of /v1/messages. Tests validate real messages against it."""

from pontil.http.schema.parameter import Schema
from pontil.http.stream.reply_schema import COUNT, KEPT, NUMBER, TEXT, UNMET, closed, constant, many, nullable

MESSAGES_ERROR = "MessagesError"
ERROR = closed(
    {"type": constant("error"), "error": closed({"type": TEXT, "message": TEXT}), "request_id": nullable(TEXT)}
)
TEXT_BLOCK = closed({"type": constant("text"), "text": TEXT})
THINKING = closed({"type": constant("thinking"), "thinking": TEXT, "signature": TEXT})
TOOL_USE = closed({"type": constant("tool_use"), "id": TEXT, "name": TEXT, "input": {"type": "object"}})
BLOCK: Schema = {"anyOf": [TEXT_BLOCK, THINKING, TOOL_USE]}
USAGE = closed(
    {
        "input_tokens": COUNT,
        "cache_creation_input_tokens": COUNT,
        "cache_creation": closed({"ephemeral_5m_input_tokens": COUNT, "ephemeral_1h_input_tokens": COUNT}),
        "cache_read_input_tokens": COUNT,
        "output_tokens": COUNT,
        "service_tier": {"enum": ["priority", "standard", "batch"]},
        "share": NUMBER,
    },
    ("share",),
)
ENDED: dict[str, Schema] = {
    "stop_reason": nullable({"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]}),
    "stop_sequence": nullable(TEXT),
}
NOTES = {"x_pontil_schema": UNMET} | KEPT
MESSAGE = closed(
    {
        "id": TEXT,
        "type": constant("message"),
        "role": constant("assistant"),
        "model": TEXT,
        "content": many(BLOCK),
        "usage": USAGE,
    }
    | ENDED
    | NOTES,
    tuple(NOTES),
)
DELTA: Schema = {
    "anyOf": [
        closed({"type": constant("text_delta"), "text": TEXT}),
        closed({"type": constant("thinking_delta"), "thinking": TEXT}),
        closed({"type": constant("signature_delta"), "signature": TEXT}),
        closed({"type": constant("input_json_delta"), "partial_json": TEXT}),
    ]
}


def event(kind: str, **fields: Schema) -> Schema:
    return closed({"type": constant(kind)} | fields, tuple(name for name in fields if name in NOTES))


EVENT: Schema = {
    "anyOf": [
        event("message_start", message=MESSAGE),
        event("ping"),
        event("content_block_start", index=COUNT, content_block=BLOCK),
        event("content_block_delta", index=COUNT, delta=DELTA),
        event("content_block_stop", index=COUNT),
        event("message_delta", delta=closed(ENDED), usage=USAGE, **NOTES),
        event("message_stop"),
        ERROR,
    ]
}
INPUT_TOKENS = closed({"input_tokens": COUNT})
