# SPDX-License-Identifier: Apache-2.0
"""JSON Schema of messages and of the other inputs of a chat template."""

from pontil.http.schema.parameter import Schema

ROLES = ("system", "developer", "user", "assistant", "tool")
# Of roles besides these, which some templates know.
ROLE_NAME = r"[A-Za-z0-9_.-]{1,64}"
MAX_TOOLS = 512
MAX_MESSAGES = 8192
TEXT: Schema = {"type": ["string", "null"]}
TEXT_PART: Schema = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
AUDIO_PART: Schema = {
    "type": "object",
    "properties": {
        "type": {"const": "input_audio"},
        "input_audio": {
            "type": "object",
            "properties": {"data": {"type": "string", "contentEncoding": "base64"}, "format": {"const": "wav"}},
            "required": ["data", "format"],
        },
    },
    "required": ["type", "input_audio"],
}
IMAGE_URL_SCHEMA: Schema = {
    "type": "string",
    "pattern": "^(data:|https?://)",
    "description": "a data URL, or an address at a host of --allowed-media-domains",
}
IMAGE_PART: Schema = {
    "type": "object",
    "properties": {
        "type": {"const": "image_url"},
        "image_url": {
            "type": "object",
            "properties": {"url": IMAGE_URL_SCHEMA, "detail": TEXT},
            "required": ["url"],
        },
    },
    "required": ["type", "image_url"],
}
PART: Schema = {"anyOf": [TEXT_PART, AUDIO_PART, IMAGE_PART]}
FUNCTION: Schema = {
    "properties": {"name": {"type": "string"}, "arguments": {"type": ["string", "object", "null"]}},
    "required": ["name"],
}
CALL: Schema = {
    "type": "object",
    "properties": {
        "id": TEXT,
        "type": {"enum": ["function", None]},
        "index": {"type": ["integer", "null"], "minimum": 0, "maximum": MAX_TOOLS - 1},
        "function": {"type": "object", **FUNCTION},
    },
    "required": ["function"],
}
MESSAGE: Schema = {
    "type": "object",
    "properties": {
        "role": {"type": "string", "pattern": f"^{ROLE_NAME}$"},
        "content": {"anyOf": [TEXT, {"type": "array", "items": PART}]},
        "name": TEXT,
        "tool_calls": {"type": ["array", "null"], "items": CALL, "maxItems": MAX_TOOLS},
        "tool_call_id": TEXT,
        "reasoning_content": TEXT,
        "reasoning": TEXT,
        "function_call": {"type": ["object", "null"], **FUNCTION},
        "audio": {"type": "null"},
        "images": {"type": ["array", "null"], "maxItems": 0},
    },
    "required": ["role"],
}


MESSAGES_SCHEMA: Schema = {
    "title": f"messages, at most {MAX_MESSAGES}",
    "type": "array",
    "items": MESSAGE,
    "minItems": 1,
    "maxItems": MAX_MESSAGES,
}


DOCUMENTS_SCHEMA: Schema = {
    "title": f"objects, at most {MAX_TOOLS}",
    "type": "array",
    "items": {"type": "object"},
    "maxItems": MAX_TOOLS,
}


VARIABLES_SCHEMA: Schema = {"title": "an object", "type": "object"}
