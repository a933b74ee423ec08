# SPDX-License-Identifier: Apache-2.0
"""The body of an answer with vectors."""

import base64
import json
import sys
from array import array
from collections.abc import Sequence

from pontil.http.stream.reply_schema import COUNT, TEXT, closed, constant, many

VECTOR = {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string", "contentEncoding": "base64"}]}
EMBEDDINGS = closed(
    {
        "object": constant("list"),
        "data": many(closed({"object": constant("embedding"), "index": COUNT, "embedding": VECTOR})),
        "model": TEXT,
        "usage": closed({"prompt_tokens": COUNT, "total_tokens": COUNT}),
    }
)


def embedding_body(vectors: Sequence[bytes], model: str, prompt_tokens: int, *, in_base64: bool) -> bytes:
    """Serialize vectors of float32 numbers in little-endian order. One call of the C code that writes JSON writes one
    vector, so that other threads run in between."""
    write = encoded if in_base64 else numbers
    items = (
        b'{"object": "embedding", "index": %d, "embedding": %b}' % (index, write(vector))
        for index, vector in enumerate(vectors)
    )
    usage = json.dumps({"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}).encode()
    name = json.dumps(model).encode()
    return b'{"object": "list", "data": [%b], "model": %b, "usage": %b}' % (b", ".join(items), name, usage)


def encoded(vector: bytes) -> bytes:
    return b'"%b"' % base64.b64encode(vector)


def numbers(vector: bytes) -> bytes:
    values = array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return json.dumps(values.tolist()).encode()
