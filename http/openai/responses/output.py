# SPDX-License-Identifier: Apache-2.0
"""The output items of a response, built from the parts of its answer, and the events that tell of them in OpenAI's
order."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any

from pontil.http.openai.chat.parsed_shape import call_id
from pontil.http.openai.responses.tools import INPUT, ToolOrigin
from pontil.runtime.chat.answer_part import AnswerPart, Arguments, Call, Content, Reasoning

COMPLETED, INCOMPLETE, IN_PROGRESS = "completed", "incomplete", "in_progress"


class EventSequence:
    """The numbered events of one stream."""

    def __init__(self) -> None:
        self.number = 0

    def event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": self.number} | fields
        self.number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), compact(data))

    def delta(self, frame: tuple[bytes, bytes], text: str, suffix: bytes = b"") -> bytes:
        """Return an event of which only the number and the text are new, by what stands around them."""
        before, between = frame
        delta_event = b"%b%d%b%b%b}\n\n" % (
            before,
            self.number,
            between,
            encode_basestring_ascii(text).encode(),
            suffix,
        )
        self.number += 1
        return delta_event


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def delta_frame(kind: str, about: dict[str, Any]) -> tuple[bytes, bytes]:
    """Return what stands before the number and before the text of an item's delta events."""
    before = b'event: %b\ndata: {"type":"%b","sequence_number":' % (kind.encode(), kind.encode())
    return before, b",%b" % compact(about | {"delta": ""})[1:-3]


class OutputItem(ABC):
    """An item while it is made. `kind` is the prefix of the events of its text. Events of an item come in this order:
    added, its deltas, done."""

    kind: str

    def __init__(self, events: EventSequence, index: int, name: str) -> None:
        self.events, self.index, self.name = events, index, name
        self.pieces: list[str] = []
        self.frame = delta_frame(f"response.{self.kind}.delta", self.about())

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @abstractmethod
    def item(self, status: str) -> dict[str, Any]:
        """Return the item as it is shown."""

    def delta(self, text: str) -> bytes:
        """Add this text, and return its event."""
        self.pieces.append(text)
        return self.events.delta(self.frame, text)

    @abstractmethod
    def done(self, status: str) -> bytes:
        """Return the events that end the item's text."""

    def status(self, answer_status: str) -> str:
        """Return the item's status where the answer ends with this one."""
        return answer_status

    def open(self) -> bytes:
        return self.events.event("response.output_item.added", output_index=self.index, item=self.item(IN_PROGRESS))

    def close(self, answer_status: str) -> tuple[dict[str, Any], bytes]:
        """Return the finished item and its last events."""
        status = self.status(answer_status)
        done_events, item = self.done(status), self.item(status)
        return item, done_events + self.events.event("response.output_item.done", output_index=self.index, item=item)

    def about(self) -> dict[str, Any]:
        return {"item_id": self.name, "output_index": self.index}


class TextItem(OutputItem):
    """An item whose text is its one content part."""

    @abstractmethod
    def part(self) -> dict[str, Any]:
        """Return the content part."""

    def about(self) -> dict[str, Any]:
        return super().about() | {"content_index": 0}

    def open(self) -> bytes:
        return super().open() + self.events.event("response.content_part.added", **self.about(), part=self.part())

    def done(self, status: str) -> bytes:
        done_event = self.events.event(f"response.{self.kind}.done", **self.about(), text=self.text)
        return done_event + self.events.event("response.content_part.done", **self.about(), part=self.part())


class MessageItem(TextItem):
    """Text for the reader. `logprobs` are those of its tokens, if they were asked for."""

    kind = "output_text"

    def __init__(self, events: EventSequence, index: int, name: str) -> None:
        super().__init__(events, index, name)
        self.logprobs: list[dict[str, Any]] = []
        self.shown = 0

    def item(self, status: str) -> dict[str, Any]:
        content = [] if status == IN_PROGRESS else [self.part()]
        return {"id": self.name, "type": "message", "status": status, "role": "assistant", "content": content}

    def part(self) -> dict[str, Any]:
        return {"type": "output_text", "annotations": [], "logprobs": self.logprobs, "text": self.text}

    def delta(self, text: str) -> bytes:
        self.pieces.append(text)
        new, self.shown = self.logprobs[self.shown :], len(self.logprobs)
        return self.events.delta(self.frame, text, b',"logprobs":%b' % (compact(new) if new else b"[]"))

    def done(self, status: str) -> bytes:
        done_event = self.events.event(
            "response.output_text.done", **self.about(), text=self.text, logprobs=self.logprobs
        )
        return done_event + self.events.event("response.content_part.done", **self.about(), part=self.part())


class ReasoningItem(TextItem):
    """The model's reasoning, as it wrote it."""

    kind = "reasoning_text"

    def item(self, status: str) -> dict[str, Any]:
        content = [] if status == IN_PROGRESS else [self.part()]
        return {"id": self.name, "type": "reasoning", "summary": [], "content": content, "status": status}

    def part(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": self.text}


class CallItem(OutputItem):
    """A call of a function, in its namespace if it has one."""

    kind = "function_call_arguments"

    def __init__(self, events: EventSequence, index: int, name: str, call: Call, origin: ToolOrigin) -> None:
        super().__init__(events, index, name)
        self.function, self.call_id = origin.name, call.identity or call_id()
        self.namespace = {} if origin.namespace is None else {"namespace": origin.namespace}

    def item(self, status: str) -> dict[str, Any]:
        call_fields = {"arguments": self.text, "call_id": self.call_id, "name": self.function} | self.namespace
        return {"id": self.name, "type": "function_call", "status": status} | call_fields

    def status(self, answer_status: str) -> str:
        """Return "completed" for arguments that are whole, however the answer ends."""
        try:
            return COMPLETED if isinstance(json.loads(self.text), dict) else INCOMPLETE
        except (ValueError, RecursionError):
            return INCOMPLETE

    def done(self, status: str) -> bytes:
        kind = "response.function_call_arguments.done"
        return self.events.event(kind, **self.about(), arguments=self.text, name=self.function)


class CustomCallItem(CallItem):
    """A call of a tool that takes a text, which the model wrote as a function's only argument. It is told once it is
    whole: the text of a call that was cut is the arguments as far as they came."""

    kind = "custom_tool_call_input"

    def item(self, status: str) -> dict[str, Any]:
        call_fields = {"input": self.input, "call_id": self.call_id, "name": self.function} | self.namespace
        return {"id": self.name, "type": "custom_tool_call", "status": status} | call_fields

    @property
    def input(self) -> str:
        if self.status(COMPLETED) != COMPLETED:
            return self.text
        text = json.loads(self.text).get(INPUT, self.text)
        return text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)

    def delta(self, text: str) -> bytes:
        self.pieces.append(text)
        return b""

    def done(self, status: str) -> bytes:
        kind = "response.custom_tool_call_input.done"
        return self.events.delta(self.frame, self.input) + self.events.event(kind, **self.about(), input=self.input)


class ResponseOutput:
    """The items of a response. One is open at a time: what follows it closes it. `token` makes their names, from which
    the response can be told (item_reference). `origins` are the tools by their functions' names."""

    def __init__(self, token: str, origins: Mapping[str, ToolOrigin]) -> None:
        self.token, self.origins = token, origins
        self.events = EventSequence()
        self.items: list[dict[str, Any]] = []
        self.current: OutputItem | None = None

    def take(self, parts: Sequence[AnswerPart], logprobs: Sequence[dict[str, Any]] = ()) -> bytes:
        """Add the next parts of the answer, and return their events. `logprobs` belong to the first text."""
        pending = list(logprobs)
        return b"".join([self.add(part, pending) for part in parts])

    def add(self, part: AnswerPart, logprobs: list[dict[str, Any]]) -> bytes:
        if isinstance(part, Call):
            origin = self.origins.get(part.name, ToolOrigin(part.name))
            item_type, prefix = (CustomCallItem, "ctc") if origin.is_custom else (CallItem, "fc")
            return self.begin(item_type(self.events, self.index, self.name(prefix), part, origin))
        opening_events = b""
        if isinstance(part, Arguments):
            assert isinstance(self.current, CallItem), "arguments come right behind their call"
        elif isinstance(part, Reasoning) and not isinstance(self.current, ReasoningItem):
            opening_events = self.begin(ReasoningItem(self.events, self.index, self.name("rs")))
        elif isinstance(part, Content) and not isinstance(self.current, MessageItem):
            opening_events = self.begin(MessageItem(self.events, self.index, self.name("msg")))
        assert self.current is not None
        if isinstance(self.current, MessageItem):
            self.current.logprobs += logprobs
            logprobs.clear()
        return opening_events + self.current.delta(part.text)

    @property
    def index(self) -> int:
        """The index of the next item."""
        return len(self.items) + (self.current is not None)

    def name(self, kind: str) -> str:
        return item_name(kind, self.token, self.index)

    def begin(self, item: OutputItem) -> bytes:
        closing_events = self.close(COMPLETED)
        self.current = item
        return closing_events + item.open()

    def close(self, status: str) -> bytes:
        """Close the open item, if there is one."""
        if self.current is None:
            return b""
        item, closing_events = self.current.close(status)
        self.items.append(item)
        self.current = None
        return closing_events

    def finish(self, status: str, logprobs: Sequence[dict[str, Any]] = ()) -> bytes:
        """End the output. An answer without anything is an empty message. `logprobs` are of tokens without text."""
        opening_events = b""
        if self.current is None and not self.items:
            opening_events = self.begin(MessageItem(self.events, 0, self.name("msg")))
        if isinstance(self.current, MessageItem):
            self.current.logprobs += logprobs
        return opening_events + self.close(status)


def item_name(kind: str, token: str, index: int) -> str:
    return f"{kind}_{token}{index:04x}"
