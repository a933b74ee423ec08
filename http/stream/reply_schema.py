# SPDX-License-Identifier: Apache-2.0
"""JSON Schema of every response. Tests validate real responses against it."""

from collections.abc import Collection
from typing import Any

from pontil.http.fields.service_tier import TOLD
from pontil.http.schema.parameter import Schema

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
BYTES: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}}


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def many(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def closed(properties: dict[str, Schema], optional: Collection[str] = ()) -> Schema:
    """Return the schema of an object with these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def constant(value: Any) -> Schema:
    return {"const": value}


IDS = many(COUNT)
REASON: Schema = {"enum": ["stop", "length"]}
CHAT_REASON: Schema = {"enum": ["stop", "length", "tool_calls", "function_call"]}
ERROR = closed({"error": closed({"message": TEXT, "type": TEXT, "param": nullable(TEXT), "code": nullable(TEXT)})})
# Only where an answer is not known to follow its schema.
UNMET = closed({"state": {"enum": ["not met", "not checked"]}, "reason": TEXT})
COUNTS = {"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT}
TIER: Schema = {"enum": list(TOLD.values())}
# The share is told of keys that have one.
OF_CLASS: dict[str, Schema] = {"service_tier": TIER, "share": NUMBER}
USAGE = closed(COUNTS | {"prompt_tokens_details": closed({"cached_tokens": COUNT})} | OF_CLASS, ("share",))
CHAT_USAGE = closed(COUNTS | {
    "prompt_tokens_details": closed(
        {"cached_tokens": COUNT, "audio_tokens": COUNT, "image_tokens": COUNT}, ("image_tokens",)
    ),
    "completion_tokens_details": closed(dict.fromkeys(
        (
            "reasoning_tokens", "audio_tokens", "text_tokens", "accepted_prediction_tokens",
            "rejected_prediction_tokens",
        ), COUNT
    ), ("reasoning_tokens", "text_tokens")),
} | OF_CLASS, ("share",))  # fmt: skip
PROMPT_LOGPROBS = many(
    nullable(
        {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]+$"},
            "additionalProperties": closed({"logprob": NUMBER, "rank": COUNT, "decoded_token": TEXT}),
        }
    )
)
COMPLETION_LOGPROBS = nullable(
    closed(
        {
            "tokens": many(TEXT),
            "token_logprobs": many(nullable(NUMBER)),
            "top_logprobs": many(nullable({"type": "object", "additionalProperties": NUMBER})),
            "text_offset": many(COUNT),
        }
    )
)
CHAT_ENTRY: dict[str, Schema] = {"token": TEXT, "logprob": NUMBER, "bytes": BYTES}
CHAT_LOGPROBS = nullable(
    closed(
        {
            "content": many(closed(CHAT_ENTRY | {"top_logprobs": many(closed(CHAT_ENTRY))})),
            "refusal": {"type": "null"},
        }
    )
)


def head(kind: str) -> dict[str, Schema]:
    return {
        "object": constant(kind),
        "id": TEXT,
        "created": COUNT,
        "model": TEXT,
        "system_fingerprint": nullable(TEXT),
        "service_tier": TIER,
    }


def choice(choice_fields: dict[str, Schema], reason: Schema) -> Schema:
    """Return the schema of a choice; token ids and prompt logprobs are there only if they were requested."""
    extra = {
        "token_ids": IDS,
        "prompt_token_ids": IDS,
        "prompt_logprobs": PROMPT_LOGPROBS,
        "x_pontil_schema": UNMET,
        "stop_reason": {"type": ["string", "integer", "null"]},
    }
    return closed({"index": COUNT} | choice_fields | {"finish_reason": reason} | extra, extra)


COMPLETION_SHOWN = {"text": TEXT, "logprobs": COMPLETION_LOGPROBS}
SIGNED = closed(
    {"statement": {"type": "object"}, "prompt": IDS, "tokens": IDS, "public_key": TEXT, "signature": TEXT}, ("prompt",)
)
RECEIPT: Schema = {"anyOf": [SIGNED, closed({"refused": TEXT})]}
# Only where a router asked that the prompt is kept, or a client for receipts: a list where there are several choices.
KEPT: dict[str, Schema] = {
    "kv_transfer_params": {"type": "object"},
    "receipt": {"anyOf": [*RECEIPT["anyOf"], many(RECEIPT)]},
}
COMPLETION = closed(
    head("text_completion") | {"choices": many(choice(COMPLETION_SHOWN, REASON)), "usage": USAGE} | KEPT, KEPT
)
COMPLETION_CHUNK = closed(
    head("text_completion")
    | {"choices": many(choice(COMPLETION_SHOWN, nullable(REASON))), "usage": nullable(USAGE)}
    | KEPT,
    ("usage", *KEPT),
)
CALL = {"id": TEXT, "type": constant("function"), "function": closed({"name": TEXT, "arguments": TEXT})}
# The first chunk of a call has all fields, later ones only more of its arguments.
CALL_PIECE = {
    "anyOf": [closed({"index": COUNT} | CALL), closed({"index": COUNT, "function": closed({"arguments": TEXT})})]
}
SOUND = {"id": TEXT, "data": TEXT, "expires_at": COUNT, "transcript": TEXT}
MESSAGE = closed(
    {
        "role": constant("assistant"),
        "content": nullable(TEXT),
        "refusal": {"type": "null"},
        "annotations": constant([]),
        "reasoning_content": TEXT,
        "reasoning": TEXT,
        "tool_calls": many(closed(CALL)),
        "function_call": CALL["function"],
        "audio": closed(SOUND),
    },
    ("reasoning_content", "reasoning", "tool_calls", "function_call", "audio"),
)
SOUND_PIECE = closed(SOUND, SOUND)
PIECES = {
    "content": nullable(TEXT),
    "reasoning_content": TEXT,
    "reasoning": TEXT,
    "tool_calls": many(CALL_PIECE),
    "function_call": closed({"name": TEXT, "arguments": TEXT}, ("name",)),
    "audio": SOUND_PIECE,
}
OPENING: dict[str, Schema] = {"role": constant("assistant"), "refusal": {"type": "null"}}
DELTA = closed(OPENING | PIECES, (*OPENING, *PIECES))
CHAT_CHOICES = many(choice({"message": MESSAGE, "logprobs": CHAT_LOGPROBS}, CHAT_REASON))
CHAT_BATCH_FIELDS = head("chat.completion") | {"choices": CHAT_CHOICES, "usage": CHAT_USAGE}
CHAT_BATCH = closed(CHAT_BATCH_FIELDS)
CHAT = closed(
    CHAT_BATCH_FIELDS | {"prompt_token_ids": IDS, "prompt_logprobs": PROMPT_LOGPROBS} | KEPT,
    ("prompt_token_ids", "prompt_logprobs", *KEPT),
)
CHAT_CHUNK = closed(
    head("chat.completion.chunk")
    | {
        "choices": many(choice({"delta": DELTA, "logprobs": CHAT_LOGPROBS}, nullable(CHAT_REASON))),
        "usage": nullable(CHAT_USAGE),
        "prompt_token_ids": IDS,
    }
    | KEPT,
    ("usage", "prompt_token_ids", *KEPT),
)
MODEL = closed(
    {
        "id": TEXT,
        "object": constant("model"),
        "created": COUNT,
        "owned_by": TEXT,
        "root": TEXT,
        "parent": {"type": "null"},
        "max_model_len": nullable(COUNT),
        "vocab_size": COUNT,
        "dtype": nullable(TEXT),
        "kv_cache_dtype": nullable(TEXT),
        "embedding_size": nullable(COUNT),
        "system_fingerprint": nullable(TEXT),
        "input_modalities": many(TEXT),
        "output_modalities": many(TEXT),
        "voices": many(TEXT),
        "state": TEXT,
    },
    optional=("embedding_size", "input_modalities", "output_modalities", "voices", "state"),
)
MODELS = closed({"object": constant("list"), "data": many(MODEL)})
TOKENIZED = closed(
    {"count": COUNT, "max_model_len": nullable(COUNT), "tokens": IDS, "token_strs": nullable(many(TEXT))}
)
DETOKENIZED = closed({"prompt": TEXT})
TRANSCRIBED = closed({"text": TEXT})
SOUND_FILE: Schema = {"type": "string", "contentMediaType": "audio/wav"}
STATUS = closed({"status": TEXT})
FINISH = {
    "anyOf": [
        closed({"type": constant("stop"), "matched": {"type": ["string", "integer", "null"]}}),
        closed({"type": constant("length"), "length": COUNT}),
        {"type": "null"},
    ]
}
GENERATED = closed(
    {
        "text": TEXT,
        "output_ids": IDS,
        "meta_info": closed(
            {
                "id": TEXT,
                "finish_reason": FINISH,
                "prompt_tokens": COUNT,
                "completion_tokens": COUNT,
                "cached_tokens": COUNT,
            }
        ),
    },
    ("output_ids",),
)
RENDERED = closed({"request_id": TEXT, "model": TEXT, "token_ids": IDS})
SERVER_LOAD = closed({"server_load": COUNT})
MODEL_INFO = closed({"model_path": TEXT, "tokenizer_path": TEXT, "is_generation": constant(True)})
TOKENIZER = closed(
    {
        "vocab_size": COUNT,
        "bos_token": nullable(TEXT),
        "eos_token": nullable(TEXT),
        "model_max_length": nullable(COUNT),
        "chat_template": nullable(TEXT),
    }
)
VERSION = closed({"version": TEXT})
LOAD = {"type": "object", "additionalProperties": COUNT}
# Further fields of the supervisor's process table are passed through as they are.
PROCESS = closed(
    {
        "name": TEXT,
        "role": TEXT,
        "pid": nullable(COUNT),
        "state": TEXT,
        "device": TEXT,
        "reason": nullable(TEXT),
        "load": LOAD,
    },
    ("reason", "load"),
) | {"additionalProperties": True}
ROUTE = closed(
    {
        "route": TEXT,
        "state": {"enum": ["UNTESTED", "PASSED", "FAILED"]},
        "bytes": COUNT,
        "seconds": NUMBER,
        "error": TEXT,
    },
    ("bytes", "seconds", "error"),
)
DIFFERENCE = closed({"token": COUNT, "of": COUNT, "part": TEXT, "message": nullable(COUNT)})
KEY_PROMPTS = closed(
    {
        "key": TEXT,
        "prompts": COUNT,
        "prompt_tokens": COUNT,
        "cached_tokens": COUNT,
        "difference": {"anyOf": [DIFFERENCE, {"type": "null"}]},
    }
)
TOPOLOGY = closed(
    {
        "processes": many(PROCESS),
        "routes": many(ROUTE),
        "prompts": many(KEY_PROMPTS),
        "leases": many(closed({"key": TEXT, "leases": COUNT, "tokens": COUNT, "bytes": COUNT, "seconds": COUNT})),
        "classes": many(closed({"class": TEXT, "running": COUNT, "waiting": COUNT})),
        "keys": many(
            closed(
                {
                    "key": TEXT,
                    "class": TEXT,
                    "share": NUMBER,
                    "requests": COUNT,
                    "tokens": COUNT,
                    "running": COUNT,
                    "waiting": COUNT,
                }
            )
        ),
        "age_seconds": NUMBER,
        "chaos": {"const": True},
    },
    ("leases", "age_seconds", "chaos"),
)
ANY_OBJECT: Schema = {"type": "object"}
