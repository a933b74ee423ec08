# SPDX-License-Identifier: Apache-2.0
"""A session with OpenAI's client and an embedding model."""

from typing import Any

import openai
from client_session import BASE_URL, LIMIT, MODEL, refused, run

client = openai.OpenAI(base_url=BASE_URL, api_key="unused", max_retries=0, timeout=LIMIT)
TEXTS = ["the sea at night", "a lamp"]


def embeddings() -> dict[str, Any]:
    """Ask in the client's own form, which is base64, and in numbers."""
    coded = client.embeddings.create(model=MODEL, input=TEXTS)
    plain = client.embeddings.create(model=MODEL, input=TEXTS, encoding_format="float")
    short = client.embeddings.create(model=MODEL, input=TEXTS[0], dimensions=8)
    return {
        "coded": [one.embedding for one in coded.data],
        "plain": [one.embedding for one in plain.data],
        "short": len(short.data[0].embedding),
        "tokens": coded.usage.prompt_tokens,
        "long": refused(lambda: client.embeddings.create(model=MODEL, input="lamp " * 2000)),
    }


run(embeddings)
