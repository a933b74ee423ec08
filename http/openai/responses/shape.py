# SPDX-License-Identifier: Apache-2.0
"""Replies of /v1/responses: the answer of a chat as output items, whole and as OpenAI's events."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pontil.http.fields.service_tier import class_usage
from pontil.http.openai.chat.parsed_shape import content_of
from pontil.http.openai.responses.output import COMPLETED, IN_PROGRESS, INCOMPLETE, ResponseOutput
from pontil.http.openai.responses.tools import ToolOrigin
from pontil.http.stream.error_object import error_of, status_of
from pontil.http.stream.logprob_shape import chat_token
from pontil.http.stream.receipts import ReceiptNote, receipt_field
from pontil.http.stream.reply_shape import ReplyChoice, ReplyHeading, ShownText, kept_field
from pontil.http.stream.schema_watch import SchemaWatch, schema_field
from pontil.http.stream.token_parts import TokenParts
from pontil.runtime.accounting.counts import Usage
from pontil.runtime.chat.answer_reader import AnswerReader
from pontil.runtime.errors import PontilError
from pontil.runtime.grammar.processes.verdict import Verdict
from pontil.runtime.proxy.requests.answer import ChoiceEvent, Delta, Ended
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.tokenizer.detokenizer import Detokenizer
from pontil.runtime.wire.messages import Logprobs

PREFIX = "resp_"
ERRORS = {429: "rate_limit_exceeded", 400: "invalid_prompt"}


class ResponsesShape:
    """The JSON of one response. `echoed` are the request's fields that it repeats; `streamed` says that it is sent as
    events, `origins` are its tools by their functions' names. The heading's id is PREFIX and a token of which the
    items' names are made."""

    def __init__(
        self,
        heading: ReplyHeading,
        echoed: dict[str, Any],
        streamed: bool,
        shown: ShownText,
        make_reader: Callable[[], AnswerReader],
        origins: Mapping[str, ToolOrigin],
        prompt_details: dict[str, int],
    ) -> None:
        self.heading, self.echoed, self.streamed, self.prompt_details = heading, echoed, streamed, prompt_details
        self.shown, self.make_reader = shown, make_reader
        self.schema_watch: SchemaWatch | None = None
        self.receipts: ReceiptNote | None = None
        self.reader = make_reader()
        self.output = ResponseOutput(heading.id.removeprefix(PREFIX), origins)
        self.request: Request | None = None
        self.reason = "stop"
        # Only with logprobs an answer is read token by token.
        self.tokens = (
            TokenParts(self.reader, Detokenizer(shown.tokenizer, shown.skip_special_tokens)) if shown.logprobs else None
        )
        self.answer: dict[str, Any] = {}
        """The response, once it is complete."""

    def events(self, stream: Stream, choice_events: Sequence[ChoiceEvent]) -> bytes:
        opening = self.opening() if choice_events and not self.output.events.number else b""
        self.request = stream.request
        if self.schema_watch is not None:
            for index, event in choice_events:
                self.schema_watch.observe(index, event)
        return opening + b"".join([self.take(event) for _, event in choice_events])

    def opening(self) -> bytes:
        event, response = self.output.events.event, self.response(IN_PROGRESS)
        return event("response.created", response=response) + event("response.in_progress", response=response)

    def take(self, event: Delta | Ended) -> bytes:
        """Add one event of the answer, and return the events that tell of it."""
        if isinstance(event, Ended):
            self.reason = event.reason
            last_parts = [(self.reader.finish(), [])] if self.tokens is None else self.tokens.finish()
            output_events = b"".join([self.output.take(parts, self.logprobs(of)) for parts, of in last_parts])
            return output_events + self.output.finish(
                self.status, self.logprobs(self.tokens.last if self.tokens else [])
            )
        if self.tokens is not None:
            return b"".join([self.output.take(parts, self.logprobs(of)) for parts, of in self.tokens.feed(event)])
        return self.output.take(self.reader.feed(event.text)) if event.text else b""

    def logprobs(self, tokens: Logprobs) -> list[dict[str, Any]]:
        return [chat_token(entries, self.shown.tokenizer) for entries in tokens]

    @property
    def status(self) -> str:
        return INCOMPLETE if self.reason == "length" else COMPLETED

    def content(self, index: int, text: str) -> str | None:
        """Return the text beside reasoning; None for calls of tools."""
        return content_of(self.make_reader(), text)

    def end(self, stream: Stream, verdicts: Mapping[int, Verdict]) -> bytes:
        """Return the last event of a complete answer."""
        return self.output.events.event(f"response.{self.status}", response=self.complete(stream.final_usage, verdicts))

    def failure(self, error: PontilError) -> bytes:
        """Return the last events of a stream that broke: one that clients raise, and the response with the error."""
        event, error_fields = self.output.events.event, error_of(error)["error"]
        flat = {name: error_fields[name] for name in ("code", "message", "param")}
        code = ERRORS.get(status_of(error), "server_error")
        response = self.response("failed") | {"error": {"code": code, "message": error_fields["message"]}}
        return event("error", **flat, error=error_fields) + event("response.failed", response=response)

    def whole(self, choices: Sequence[ReplyChoice], usage: Usage, verdicts: Mapping[int, Verdict]) -> dict[str, Any]:
        (choice,) = choices
        self.request = choice.request
        self.take(Delta(choice.text, choice.ids, logprobs=choice.logprobs))
        self.take(Ended(0, choice.reason or "stop"))
        return self.complete(usage, verdicts)

    def complete(self, usage: Usage, verdicts: Mapping[int, Verdict]) -> dict[str, Any]:
        """Return the response of an answer that has ended, with the verdict on it, if it was checked. It is made
        once."""
        if not self.answer:
            verdict_fields = {} if 0 not in verdicts else schema_field(verdicts[0])
            transfer_field = {} if self.request is None else kept_field(self.request)
            self.answer = self.response(self.status, usage) | verdict_fields | transfer_field
            self.answer |= receipt_field(self.receipts)
        return self.answer

    def response(self, status: str, usage: Usage | None = None) -> dict[str, Any]:
        has_ended = status in (COMPLETED, INCOMPLETE)
        short = {"reason": "max_output_tokens"} if status == INCOMPLETE else None
        return {
            "id": self.heading.id,
            "object": "response",
            "created_at": self.heading.created,
            "completed_at": int(time.time()) if has_ended else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": short,
            "model": self.heading.model,
            "output": list(self.output.items),
            "service_tier": self.heading.service_tier,
            "usage": None if usage is None else self.usage(usage),
        } | self.echoed

    def usage(self, usage: Usage) -> dict[str, Any]:
        """Return the usage object, without reasoning tokens if they could not be counted."""
        assert self.request is not None
        reasoning = self.reader.reasoning_tokens(self.request.answers[0].ids)
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0}
            | self.prompt_details,
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {} if reasoning is None else {"reasoning_tokens": reasoning},
            "total_tokens": usage.total_tokens,
        } | class_usage(self.heading.service_tier, self.heading.share)
