# SPDX-License-Identifier: Apache-2.0
"""JSON Schema of the replies of Ollama's API. Tests validate real answers against it."""

from pontil.http.schema.parameter import Schema
from pontil.http.stream.reply_schema import CHAT_ENTRY, COUNT, KEPT, NUMBER, TEXT, UNMET, closed, constant, many

OLLAMA_ERROR = "OllamaError"
ERROR = closed({"error": TEXT})
FUNCTION = closed({"name": TEXT, "arguments": {"type": "object"}})
CALLS = many(closed({"id": TEXT, "function": FUNCTION}))
MESSAGE = closed(
    {"role": constant("assistant"), "content": TEXT, "thinking": TEXT, "tool_calls": CALLS}, ("thinking", "tool_calls")
)
HEAD: dict[str, Schema] = {"model": TEXT, "created_at": TEXT, "done": {"type": "boolean"}}
LOGPROBS = many(closed(CHAT_ENTRY | {"top_logprobs": many(closed(CHAT_ENTRY))}))
# In the last line of a stream, and in a whole answer.
ENDED: dict[str, Schema] = {
    "done_reason": {"enum": ["stop", "length", "load"]},
    "total_duration": COUNT,
    "load_duration": COUNT,
    "prompt_eval_count": COUNT,
    "prompt_eval_duration": COUNT,
    "eval_count": COUNT,
    "eval_duration": COUNT,
    "x_pontil_schema": UNMET,
    "logprobs": LOGPROBS,
    "receipt": KEPT["receipt"],
}
CHAT = closed(HEAD | {"message": MESSAGE} | ENDED, ENDED)
GENERATED = closed(HEAD | {"response": TEXT, "thinking": TEXT} | ENDED, ("thinking", *ENDED))
DETAILS = closed(
    dict.fromkeys(("parent_model", "format", "family", "parameter_size", "quantization_level"), TEXT)
    | {"families": many(TEXT)}
)
LISTED: dict[str, Schema] = {"name": TEXT, "model": TEXT, "size": COUNT, "digest": TEXT, "details": DETAILS}
TAGS = closed({"models": many(closed(LISTED | {"modified_at": TEXT}))})
RUNNING = closed({"models": many(closed(LISTED | {"expires_at": TEXT, "size_vram": COUNT, "context_length": COUNT}))})
SHOWN = closed(
    {
        "modelfile": TEXT,
        "parameters": TEXT,
        "template": TEXT,
        "details": DETAILS,
        "model_info": {"type": "object"},
        "capabilities": many({"enum": ["completion", "tools", "thinking", "embedding"]}),
        "modified_at": TEXT,
    }
)
VERSION = closed({"version": TEXT, "pontil": TEXT})
VECTOR = many(NUMBER)
EMBEDDED = closed(
    {
        "model": TEXT,
        "embeddings": many(VECTOR),
        "total_duration": COUNT,
        "load_duration": COUNT,
        "prompt_eval_count": COUNT,
    }
)
EMBEDDING = closed({"embedding": VECTOR})
