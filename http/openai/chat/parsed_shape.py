# SPDX-License-Identifier: Apache-2.0
"""Chat replies with reasoning and tool calls separated from the text."""

import json
import secrets
from collections.abc import Callable
from typing import Any

from pontil.http.fields.delivery import Delivery
from pontil.http.stream.reply_shape import UNFILLED, ChatShape, ReplyChoice, ReplyHeading, ShownText
from pontil.runtime.accounting.counts import Usage
from pontil.runtime.chat.answer_part import AnswerPart, Arguments, Call, Content, Reasoning
from pontil.runtime.chat.answer_reader import AnswerReader
from pontil.runtime.proxy.requests.answer import Delta
from pontil.runtime.proxy.requests.request import Request


class ParsedChatShape(ChatShape):
    """The JSON of a chat reply whose choices are parsed, each by its own reader. A chunk holds one part of an answer;
    the ids and logprobs of a delta are in its first chunk, which is empty while the text is held back. Without
    `include_reasoning` the parts that are reasoning are left out."""

    def __init__(
        self,
        heading: ReplyHeading,
        delivery: Delivery,
        shown: ShownText,
        make_reader: Callable[[], AnswerReader],
        include_reasoning: bool = True,
    ) -> None:
        super().__init__(heading, delivery, shown)
        self.make_reader, self.include_reasoning = make_reader, include_reasoning
        self.readers: dict[int, AnswerReader] = {}
        self.request: Request | None = None

    def reader(self, index: int) -> AnswerReader:
        if index not in self.readers:
            self.readers[index] = self.make_reader()
        return self.readers[index]

    def included(self, parts: list[AnswerPart]) -> list[AnswerPart]:
        return [part for part in parts if self.include_reasoning or not isinstance(part, Reasoning)]

    def opening(self, index: int, request: Request, usage: Usage | None = None) -> bytes:
        self.request = request
        return super().opening(index, request, usage)

    def chunk(self, index: int, delta: Delta, usage: Usage | None) -> bytes:
        parts = self.included(self.reader(index).feed(delta.text))
        logprobs = json.dumps(self.logprobs(index, delta.logprobs)).encode() if self.shown.logprobs else b"null"
        if not parts and not self.delivery.token_ids and not delta.logprobs:
            return b""
        first = self.part(index, parts[0] if parts else None, logprobs)
        later_chunks = [self.framed(self.part(index, part), (), usage) for part in parts[1:]]
        return self.framed(first, delta.ids, usage) + b"".join(later_chunks)

    def last_chunk(self, index: int, reason: str, usage: Usage | None, note: bytes, kept: bytes = b"") -> bytes:
        reader = self.reader(index)
        held_chunks = [self.framed(self.part(index, part), (), usage) for part in self.included(reader.finish())]
        return b"".join(held_chunks) + super().last_chunk(index, self.reason(index, reason), usage, note, kept)

    def content(self, index: int, text: str) -> str | None:
        """Return the text beside reasoning; None for calls of tools."""
        return content_of(self.make_reader(), text)

    def part(self, index: int, part: AnswerPart | None, logprobs: bytes = b"null") -> bytes:
        """Return the JSON of a chunk's choice without its closing brace."""
        if isinstance(part, Content):
            return self.delta(index, json.dumps(part.text).encode(), b"null", logprobs)
        delta = b"{}" if part is None else json.dumps(self.delta_of(part), separators=(",", ":")).encode()
        return b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":null' % (index, delta, logprobs)

    def choice(self, index: int, choice: ReplyChoice) -> dict[str, Any]:
        self.request = choice.request
        reader = self.reader(index)
        message = self.message_of(self.included([*reader.feed(choice.text), *reader.finish()]))
        if self.shown.continued:
            message["content"] = self.shown.continued + (message["content"] or "")
        choice_logprobs = self.logprobs(index, choice.logprobs) if self.shown.logprobs else None
        reason = self.reason(index, choice.reason or "stop")
        return {"index": index, "message": message, "logprobs": choice_logprobs, "finish_reason": reason}

    def reason(self, index: int, reason: str) -> str:
        """Return the finish reason of a choice whose worker gave this one."""
        return self.reader(index).reason(reason)

    def delta_of(self, part: Reasoning | Call | Arguments) -> dict[str, Any]:
        return delta_of(part)

    def message_of(self, parts: list[AnswerPart]) -> dict[str, Any]:
        return message_of(parts)

    def reasoning_tokens(self) -> int | None:
        """Return the count over all choices; None if it is not exact for one of them."""
        if self.request is None:
            return 0
        counts = [self.reader(index).reasoning_tokens(answer.ids) for index, answer in enumerate(self.request.answers)]
        return None if None in counts else sum(count or 0 for count in counts)


def content_of(reader: AnswerReader, text: str) -> str | None:
    """Return the text beside reasoning in a whole answer, which is new to the reader; None for calls of tools."""
    parts = [*reader.feed(text), *reader.finish()]
    if any(isinstance(part, Call) for part in parts):
        return None
    return "".join(part.text for part in parts if isinstance(part, Content))


def delta_of(part: Reasoning | Call | Arguments) -> dict[str, Any]:
    if isinstance(part, Reasoning):
        return reasoning_fields(part.text)
    if isinstance(part, Call):
        function = {"name": part.name, "arguments": ""}
        return {
            "tool_calls": [
                {"index": part.index, "id": part.identity or call_id(), "type": "function", "function": function}
            ]
        }
    return {"tool_calls": [{"index": part.index, "function": {"arguments": part.text}}]}


def reasoning_fields(text: str) -> dict[str, str]:
    """Return the text under both names by which clients know it: DeepSeek's, and vLLM's newer one."""
    return {"reasoning_content": text, "reasoning": text}


def message_of(parts: list[AnswerPart]) -> dict[str, Any]:
    """Return the message of a whole reply. Its content is null if the answer has only reasoning or tool calls."""
    content = "".join(part.text for part in parts if isinstance(part, Content))
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    calls: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, Call):
            function = {"name": part.name, "arguments": ""}
            calls.append({"id": part.identity or call_id(), "type": "function", "function": function})
        elif isinstance(part, Arguments):
            calls[part.index]["function"]["arguments"] += part.text
    message: dict[str, Any] = {
        "role": "assistant",
        "content": content or (None if reasoning or calls else ""),
    } | UNFILLED
    if reasoning:
        message |= reasoning_fields(reasoning)
    return message | ({"tool_calls": calls} if calls else {})


def call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class FunctionCallShape(ParsedChatShape):
    """The JSON of such a reply. It has one call at most."""

    def reason(self, index: int, reason: str) -> str:
        finish_reason = super().reason(index, reason)
        return "function_call" if finish_reason == "tool_calls" else finish_reason

    def delta_of(self, part: Reasoning | Call | Arguments) -> dict[str, Any]:
        if isinstance(part, Reasoning):
            return reasoning_fields(part.text)
        if isinstance(part, Call):
            return {"function_call": {"name": part.name, "arguments": ""}}
        return {"function_call": {"arguments": part.text}}

    def message_of(self, parts: list[AnswerPart]) -> dict[str, Any]:
        message = message_of(parts)
        calls = message.pop("tool_calls", None)
        return message if calls is None else message | {"function_call": calls[0]["function"]}
