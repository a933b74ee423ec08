# SPDX-License-Identifier: Apache-2.0
"""JSON Schema of the replies of /v1/responses. Tests validate real responses against it."""

from typing import Any

from pontil.http.schema.parameter import Schema
from pontil.http.stream.reply_schema import (
    CHAT_ENTRY,
    COUNT,
    KEPT,
    NUMBER,
    OF_CLASS,
    TEXT,
    TIER,
    UNMET,
    closed,
    constant,
    many,
    nullable,
)

STATUS: Schema = {"enum": ["in_progress", "completed", "incomplete"]}
LOGPROBS = many(closed(CHAT_ENTRY | {"top_logprobs": many(closed(CHAT_ENTRY))}))
OUTPUT_TEXT = closed(
    {"type": constant("output_text"), "annotations": many({"type": "object"}), "logprobs": LOGPROBS, "text": TEXT},
    ("logprobs",),
)
INPUT_TEXT = closed({"type": constant("input_text"), "text": TEXT})
REASONING_TEXT = closed({"type": constant("reasoning_text"), "text": TEXT})
SUMMARY_TEXT = closed({"type": constant("summary_text"), "text": TEXT})
MESSAGE = closed(
    {
        "id": TEXT,
        "type": constant("message"),
        "status": STATUS,
        "role": constant("assistant"),
        "content": many(OUTPUT_TEXT),
    }
)
REASONING = closed(
    {
        "id": TEXT,
        "type": constant("reasoning"),
        "summary": many(SUMMARY_TEXT),
        "content": many(REASONING_TEXT),
        "status": STATUS,
    },
    ("status",),
)
CALLED = {"call_id": TEXT, "name": TEXT, "namespace": TEXT}
CALL = closed(
    {"id": TEXT, "type": constant("function_call"), "status": STATUS, "arguments": TEXT} | CALLED, ("namespace",)
)
CUSTOM_CALL = closed(
    {"id": TEXT, "type": constant("custom_tool_call"), "status": STATUS, "input": TEXT} | CALLED, ("namespace",)
)
OUTPUT_ITEM: Schema = {"anyOf": [MESSAGE, REASONING, CALL, CUSTOM_CALL]}
INPUT_ITEM: Schema = {"anyOf": [
    closed({"id": TEXT, "type": constant("message"), "status": STATUS, "role": TEXT,
            "content": many({"anyOf": [INPUT_TEXT, OUTPUT_TEXT]})}),
    closed({"id": TEXT, "type": {"enum": ["function_call_output", "custom_tool_call_output"]}, "status": STATUS,
            "call_id": TEXT, "output": TEXT}),
    REASONING, CALL, CUSTOM_CALL,
]}  # fmt: skip
USAGE = closed(
    {
        "input_tokens": COUNT,
        "input_tokens_details": closed(
            {"cached_tokens": COUNT, "cache_write_tokens": COUNT, "audio_tokens": COUNT, "image_tokens": COUNT},
            ("audio_tokens", "image_tokens"),
        ),
        "output_tokens": COUNT,
        "output_tokens_details": closed({"reasoning_tokens": COUNT}, ("reasoning_tokens",)),
        "total_tokens": COUNT,
    }
    | OF_CLASS,
    ("share",),
)
OBJECT: Schema = {"type": "object"}
RESPONSE = closed(
    {
        "id": TEXT,
        "object": constant("response"),
        "created_at": COUNT,
        "completed_at": nullable(COUNT),
        "status": {"enum": ["in_progress", "completed", "incomplete", "failed"]},
        "background": constant(False),
        "error": nullable(closed({"code": TEXT, "message": TEXT})),
        "incomplete_details": nullable(closed({"reason": constant("max_output_tokens")})),
        "model": TEXT,
        "output": many(OUTPUT_ITEM),
        "service_tier": TIER,
        "usage": nullable(USAGE),
        "instructions": nullable(TEXT),
        "max_output_tokens": nullable(COUNT),
        "max_tool_calls": nullable(COUNT),
        "parallel_tool_calls": {"type": "boolean"},
        "previous_response_id": nullable(TEXT),
        "prompt_cache_key": nullable(TEXT),
        "safety_identifier": nullable(TEXT),
        "temperature": NUMBER,
        "tool_choice": {"anyOf": [TEXT, OBJECT]},
        "top_p": NUMBER,
        "truncation": {"enum": ["auto", "disabled"]},
        "user": nullable(TEXT),
        "presence_penalty": NUMBER,
        "frequency_penalty": NUMBER,
        "metadata": OBJECT | {"additionalProperties": TEXT},
        "reasoning": closed({"effort": nullable(TEXT), "summary": nullable(TEXT)}),
        "text": closed({"format": OBJECT, "verbosity": TEXT}),
        "tools": many(OBJECT),
        "top_logprobs": COUNT,
        "store": {"type": "boolean"},
        "x_pontil_schema": UNMET,
    }
    | KEPT,
    ("x_pontil_schema", *KEPT),
)


def event(kind: str, **fields: Schema) -> Schema:
    return closed({"type": constant(f"response.{kind}"), "sequence_number": COUNT} | fields)


def of_text(kind: str, **fields: Schema) -> Schema:
    """Return the schema of an event about the text of an item."""
    return event(kind, item_id=TEXT, output_index=COUNT, content_index=COUNT, **fields)


def of_call(kind: str, **fields: Schema) -> Schema:
    return event(kind, item_id=TEXT, output_index=COUNT, **fields)


PART: Schema = {"anyOf": [OUTPUT_TEXT, REASONING_TEXT]}
KINDS = ("created", "in_progress", "completed", "incomplete", "failed")
BROKEN: dict[str, Any] = {"code": nullable(TEXT), "message": TEXT, "param": nullable(TEXT)}
EVENT: Schema = {
    "anyOf": [
        *(event(kind, response=RESPONSE) for kind in KINDS),
        *(event(f"output_item.{kind}", output_index=COUNT, item=OUTPUT_ITEM) for kind in ("added", "done")),
        *(of_text(f"content_part.{kind}", part=PART) for kind in ("added", "done")),
        of_text("output_text.delta", delta=TEXT, logprobs=LOGPROBS),
        of_text("output_text.done", text=TEXT, logprobs=LOGPROBS),
        of_text("reasoning_text.delta", delta=TEXT),
        of_text("reasoning_text.done", text=TEXT),
        of_call("function_call_arguments.delta", delta=TEXT),
        of_call("function_call_arguments.done", arguments=TEXT, name=TEXT),
        of_call("custom_tool_call_input.delta", delta=TEXT),
        of_call("custom_tool_call_input.done", input=TEXT),
        closed(
            {"type": constant("error"), "sequence_number": COUNT, "error": closed(BROKEN | {"type": TEXT})} | BROKEN
        ),
    ]
}
INPUT_TOKENS = closed({"object": constant("response.input_tokens"), "input_tokens": COUNT})
DELETED = closed({"id": TEXT, "object": constant("response"), "deleted": constant(True)})
INPUT_ITEMS = closed(
    {
        "object": constant("list"),
        "data": many(INPUT_ITEM),
        "first_id": nullable(TEXT),
        "last_id": nullable(TEXT),
        "has_more": {"type": "boolean"},
    }
)
PAGE: tuple[tuple[str, Schema], ...] = (
    ("limit", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}),
    ("order", {"enum": ["asc", "desc"], "default": "desc"}),
    ("after", TEXT),
)
