# SPDX-License-Identifier: Apache-2.0
"""The JSON that OpenAI's clients expect: whole answers and the chunks of a stream.

A chunk is the same bytes around one piece of text for every token of a stream, so those are made once.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pontil.http.sampling_fields import Delivery
from pontil.runtime.accounting.counts import Usage
from pontil.runtime.proxy.mailbox import Delta
from pontil.runtime.proxy.stream import Stream
from pontil.runtime.wire.messages import Logprobs


@dataclass(slots=True)
class Choice:
    """One finished answer to the prompt of `stream`, put together."""

    stream: Stream
    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: Logprobs = field(default_factory=list)
    reason: str | None = None

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.ids += delta.ids
        self.logprobs += delta.logprobs


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


class ReplyShape:
    """One reply of either endpoint. `id`, `created` (seconds since 1970) and `model` stand in every chunk."""

    whole_object = chunk_object = "text_completion"

    def __init__(self, identity: str, created: int, model: str, delivery: Delivery) -> None:
        self.delivery = delivery
        self.base = {"id": identity, "created": created, "model": model}
        head = {"object": self.chunk_object} | self.base
        self.before = b"data: " + json.dumps(head, separators=(",", ":")).encode()[:-1] + b',"choices":['
        # A stream that asked for usage has the field in every chunk, null but where it is known.
        self.after = b'],"usage":null}\n\n' if delivery.include_usage else b"]}\n\n"

    def choice(self, index: int, choice: Choice) -> dict[str, Any]:
        return {"index": index, "text": choice.text, "logprobs": None, "finish_reason": choice.reason}

    def opening(self, index: int) -> bytes:
        """What comes before a choice's first text."""
        return b""

    def delta(self, index: int, text: bytes, reason: bytes) -> bytes:
        """A choice of a chunk without its closing brace; `text` and `reason` are JSON."""
        return b'{"index":%d,"text":%b,"logprobs":null,"finish_reason":%b' % (index, text, reason)

    def last_delta(self, index: int, reason: bytes) -> bytes:
        return self.delta(index, b'""', reason)

    def chunk(self, index: int, delta: Delta, usage: Usage | None) -> bytes:
        return self.framed(self.delta(index, json.dumps(delta.text).encode(), b"null"), delta.ids, usage)

    def last_chunk(self, index: int, reason: str, usage: Usage | None) -> bytes:
        return self.framed(self.last_delta(index, json.dumps(reason).encode()), (), usage)

    def framed(self, choice: bytes, ids: Sequence[int], usage: Usage | None) -> bytes:
        shown = b',"token_ids":%b}' % json.dumps(list(ids)).encode() if self.delivery.token_ids else b"}"
        if usage is None or not self.delivery.continuous_usage:
            return self.before + choice + shown + self.after
        return self.before + choice + shown + b'],"usage":' + json.dumps(usage_object(usage)).encode() + b"}\n\n"

    def usage_chunk(self, usage: Usage) -> bytes:
        """The last before [DONE], for streams that asked (A10)."""
        return self.before + b'],"usage":' + json.dumps(usage_object(usage)).encode() + b"}\n\n"

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        made = [self.choice(index, choice) for index, choice in enumerate(choices)]
        if self.delivery.token_ids:
            for shown, choice in zip(made, choices, strict=True):
                shown["token_ids"] = choice.ids
        return {"object": self.whole_object} | self.base | {"choices": made, "usage": usage_object(usage)}


class ChatShape(ReplyShape):
    """The role comes in a chunk of its own before the text (F4)."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def choice(self, index: int, choice: Choice) -> dict[str, Any]:
        message = {"role": "assistant", "content": choice.text}
        return {"index": index, "message": message, "logprobs": None, "finish_reason": choice.reason}

    def opening(self, index: int) -> bytes:
        role = b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}' % index
        return self.before + role + self.after

    def delta(self, index: int, text: bytes, reason: bytes) -> bytes:
        return b'{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":%b' % (index, text, reason)

    def last_delta(self, index: int, reason: bytes) -> bytes:
        return b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":%b' % (index, reason)
