# SPDX-License-Identifier: Apache-2.0
"""Replies of /v1/messages: the answer of a chat as content blocks, whole and as Anthropic's events."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pontil.http.anthropic.content_blocks import TTLS
from pontil.http.anthropic.error_shape import message_error
from pontil.http.anthropic.message_blocks import MessageBlocks, message_event
from pontil.http.anthropic.thinking_seal import ThinkingSeal
from pontil.http.fields.service_tier import class_usage
from pontil.http.openai.chat.parsed_shape import content_of
from pontil.http.stream.error_object import status_of
from pontil.http.stream.receipts import ReceiptNote, receipt_field
from pontil.http.stream.reply_shape import ReplyChoice, ReplyHeading, kept_field
from pontil.http.stream.schema_watch import SchemaWatch, schema_field
from pontil.runtime.accounting.counts import Usage
from pontil.runtime.chat.answer_part import AnswerPart, Reasoning
from pontil.runtime.chat.answer_reader import AnswerReader
from pontil.runtime.errors import PontilError
from pontil.runtime.grammar.processes.verdict import Verdict
from pontil.runtime.proxy.requests.answer import ChoiceEvent, Delta, Ended
from pontil.runtime.proxy.requests.generation import PromptWork
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.requests.stream import Stream

PREFIX = "msg_"
# Anthropic's words for classes, by OpenAI's.
TIERS = {"priority": "priority", "default": "standard", "flex": "batch"}
REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


def usage_object(usage: Usage, created: tuple[int, int]) -> dict[str, Any]:
    """Return the usage. Of the tokens that were computed some were `created` for a lease of so many
    seconds; the input tokens are the others."""
    made, seconds = created
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens - made,
        "cache_creation_input_tokens": made,
        "cache_creation": {
            f"ephemeral_{name}_input_tokens": made if seconds == lasts else 0 for name, lasts in TTLS.items()
        },
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


class MessagesShape:
    """The JSON of one message. `streamed` says that it is sent as events; without `thinks` reasoning is left out. The
    heading's id is PREFIX and a token; errors name the request by `request_id`."""

    def __init__(
        self,
        heading: ReplyHeading,
        make_reader: Callable[[], AnswerReader],
        seal: ThinkingSeal,
        request_id: str,
        *,
        streamed: bool,
        thinks: bool,
    ) -> None:
        self.heading, self.make_reader, self.request_id = heading, make_reader, request_id
        self.streamed, self.thinks = streamed, thinks
        self.schema_watch: SchemaWatch | None = None
        self.receipts: ReceiptNote | None = None
        self.reader = make_reader()
        self.blocks = MessageBlocks(heading.id.removeprefix(PREFIX), seal)
        self.request: Request | None = None
        self.has_begun = False
        self.reason = "end_turn"
        self.stop_sequence: str | None = None

    def events(self, stream: Stream, choice_events: Sequence[ChoiceEvent]) -> bytes:
        opening = self.opening(stream) if choice_events and not self.has_begun else b""
        if self.schema_watch is not None:
            for index, event in choice_events:
                self.schema_watch.observe(index, event)
        return opening + b"".join([self.take(event) for _, event in choice_events])

    def opening(self, stream: Stream) -> bytes:
        self.has_begun, self.request = True, stream.request
        message = self.message([], None, self.usage(stream.usage) | {"output_tokens": 0})
        return message_event("message_start", message=message) + message_event("ping")

    def take(self, event: Delta | Ended) -> bytes:
        """Add one event of the answer, and return the events that tell of it."""
        if isinstance(event, Delta):
            return self.blocks.take(self.shown(self.reader.feed(event.text))) if event.text else b""
        told = self.blocks.take(self.shown(self.reader.finish())) + self.blocks.close()
        reason = self.reader.reason(event.reason)
        if reason == "stop" and isinstance(event.stop_reason, str):
            self.reason, self.stop_sequence = "stop_sequence", event.stop_reason
        else:
            self.reason = REASONS.get(reason, "end_turn")
        return told

    def shown(self, parts: list[AnswerPart]) -> list[AnswerPart]:
        return [part for part in parts if self.thinks or not isinstance(part, Reasoning)]

    def content(self, index: int, text: str) -> str | None:
        """Return the text beside reasoning; None for calls of tools."""
        return content_of(self.make_reader(), text)

    def end(self, stream: Stream, verdicts: Mapping[int, Verdict]) -> bytes:
        """Return the last events of a complete answer."""
        ended = {"stop_reason": self.reason, "stop_sequence": self.stop_sequence}
        notes = self.notes(verdicts)
        delta = message_event("message_delta", delta=ended, usage=self.usage(stream.final_usage), **notes)
        return delta + message_event("message_stop")

    def failure(self, error: PontilError) -> bytes:
        """Return the last event of a stream that broke."""
        told = message_error(str(error), status_of(error), self.request_id)
        return message_event(told.pop("type"), **told)

    def whole(self, choices: Sequence[ReplyChoice], usage: Usage, verdicts: Mapping[int, Verdict]) -> dict[str, Any]:
        (choice,) = choices
        self.request = choice.request
        self.take(Delta(choice.text, choice.ids))
        self.take(Ended(0, choice.reason or "stop", choice.stop_reason))
        return self.message(self.blocks.blocks, self.reason, self.usage(usage)) | self.notes(verdicts)

    def usage(self, usage: Usage) -> dict[str, Any]:
        work = None if self.request is None else self.request.work
        created = work.created(usage.cached_tokens) if isinstance(work, PromptWork) else (0, 0)
        return usage_object(usage, created) | class_usage(TIERS[self.heading.service_tier], self.heading.share)

    def notes(self, verdicts: Mapping[int, Verdict]) -> dict[str, Any]:
        """Return the fields about the verdict on an answer that was checked, about a prompt that was kept, and about
        what was computed."""
        verdict_field = schema_field(verdicts[0]) if 0 in verdicts else {}
        return receipt_field(self.receipts) | verdict_field | ({} if self.request is None else kept_field(self.request))

    def message(self, content: list[dict[str, Any]], reason: str | None, usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self.heading.id,
            "type": "message",
            "role": "assistant",
            "model": self.heading.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": self.stop_sequence,
            "usage": usage,
        }
