# SPDX-License-Identifier: Apache-2.0
"""Parser of /invocations, whose bodies are those of a chat or of a completion. Pure."""

from collections.abc import Mapping
from typing import Any

from pontil.http.openai.chat.request import ChatRequest, read_chat
from pontil.http.openai.completions.request import CompletionRequest, read_completion
from pontil.http.schema.ignored import IgnoredFields

NOTHING: tuple[Any, ...] = (None, "", [])


def read_either(
    data: Mapping[str, Any], vocab_size: int, ignored: IgnoredFields | None = None
) -> ChatRequest | CompletionRequest:
    """Parse the request, a chat where it has messages and no prompt. Raises RequestError, naming the parameter."""
    is_chat = data.get("messages") is not None and data.get("prompt") in NOTHING
    return (read_chat if is_chat else read_completion)(data, vocab_size, ignored)
