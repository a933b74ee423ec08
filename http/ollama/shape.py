# SPDX-License-Identifier: Apache-2.0
"""Replies of /api/chat and /api/generate: the answer as one object, or as a line of JSON for each of its parts."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from json.encoder import encode_basestring_ascii
from typing import Any

from pontil.http.ollama.error_shape import ollama_error
from pontil.http.ollama.told_calls import ToldCalls
from pontil.http.openai.chat.parsed_shape import content_of
from pontil.http.stream.logprob_shape import chat_token
from pontil.http.stream.receipts import ReceiptNote, receipt_field
from pontil.http.stream.reply import StreamFraming
from pontil.http.stream.reply_shape import ReplyChoice, ReplyHeading, ShownText
from pontil.http.stream.schema_watch import SchemaWatch, schema_field
from pontil.runtime.accounting.counts import Usage
from pontil.runtime.chat.answer_part import AnswerPart, Call, Content, Reasoning
from pontil.runtime.chat.answer_reader import AnswerReader
from pontil.runtime.errors import PontilError
from pontil.runtime.grammar.processes.verdict import Verdict
from pontil.runtime.proxy.requests.answer import ChoiceEvent, Delta, Ended
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.timeline.received import ReceivedRequest

LINES = "application/x-ndjson"
PER_SECOND = 1_000_000_000
# Stands for a text in a line. JSON never contains it as it is.
MARK = "\0"


def time_of(created: int) -> str:
    """Return a time as Ollama writes it (RFC 3339)."""
    return datetime.fromtimestamp(created, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def nanoseconds(seconds: float) -> int:
    """Return a duration, of which clients make a rate: never 0."""
    return max(1, int(seconds * PER_SECOND))


def line_of(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"


def message_answer(text: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return what /api/chat says: a message."""
    return {"message": {"role": "assistant", "content": text, **more}}


def text_answer(text: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return what /api/generate says: a text."""
    return {"response": text, **more}


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form of an answer: how its parts are said, whether it is `streamed`, and whether reasoning is shown."""

    say: Callable[[str, Mapping[str, Any]], dict[str, Any]]
    streamed: bool
    thinks: bool
    shown: ShownText


class OllamaShape:
    """The JSON of one answer to a request that was `received`. The heading's id makes the ids of calls."""

    def __init__(
        self,
        heading: ReplyHeading,
        form: AnswerForm,
        make_reader: Callable[[], AnswerReader],
        received: ReceivedRequest,
    ) -> None:
        self.heading, self.form, self.make_reader, self.received = heading, form, make_reader, received
        self.streamed = form.streamed
        self.schema_watch: SchemaWatch | None = None
        self.receipts: ReceiptNote | None = None
        self.reader = make_reader()
        self.calls = ToldCalls(heading.id)
        self.texts: dict[type[Content | Reasoning], list[str]] = {Content: [], Reasoning: []}
        self.has_begun = False
        self.reason = "stop"
        self.around = {Content: self.line_around(Content), Reasoning: self.line_around(Reasoning)}

    @property
    def framing(self) -> StreamFraming:
        """A line without text says that the stream still runs: there are no comments between lines."""
        return StreamFraming(LINES, self.line(""))

    def events(self, stream: Stream, choice_events: Sequence[ChoiceEvent]) -> bytes:
        if self.schema_watch is not None:
            for index, event in choice_events:
                self.schema_watch.observe(index, event)
        told = b"".join([self.take(event) for _, event in choice_events])
        if not told and choice_events and not self.has_begun:
            # The answer begins, though nothing of it is shown yet.
            told = self.line("")
        self.has_begun = self.has_begun or bool(told)
        return told

    def take(self, event: Delta | Ended) -> bytes:
        """Add one event of the answer, and return the lines that tell of it."""
        if isinstance(event, Ended):
            told = self.tell(self.reader.finish()) + self.end_call()
            self.reason = "length" if self.reader.reason(event.reason) == "length" else "stop"
            return told
        told, logprobs = self.tell(self.reader.feed(event.text)), self.logprobs(event)
        if not logprobs:
            return told
        # They are in the first line, which has no text while that is held back.
        first, _, later = told.partition(b"\n")
        return line_of((json.loads(first) if first else self.answer("", {})) | logprobs) + later

    def logprobs(self, delta: Delta | ReplyChoice) -> dict[str, Any]:
        """Return the field with the logprobs of these tokens, which is there only if they were asked for."""
        shown = self.form.shown
        if not (shown.logprobs and delta.logprobs):
            return {}
        return {"logprobs": [chat_token(entries, shown.tokenizer) for entries in delta.logprobs]}

    def tell(self, parts: Sequence[AnswerPart]) -> bytes:
        return b"".join([self.add(part) for part in parts])

    def add(self, part: AnswerPart) -> bytes:
        if isinstance(part, Reasoning) and not self.form.thinks:
            return b""
        if isinstance(part, Content | Reasoning):
            self.texts[type(part)].append(part.text)
            before, after = self.around[type(part)]
            return b"%b%b%b%b" % (self.end_call(), before, encode_basestring_ascii(part.text).encode(), after)
        told = self.end_call() if isinstance(part, Call) else b""
        self.calls.add(part)
        return told

    def end_call(self) -> bytes:
        calls = self.calls.close()
        return line_of(self.answer("", {"tool_calls": calls})) if calls else b""

    def line_around(self, kind: type[Content | Reasoning]) -> tuple[bytes, bytes]:
        """Return the bytes of a line before and after its text, which are the same in all of them."""
        text, more = (MARK, {}) if kind is Content else ("", {"thinking": MARK})
        before, _, after = line_of(self.answer(text, more)).rpartition(json.dumps(MARK).encode())
        return before, after

    def line(self, text: str, **more: Any) -> bytes:
        return line_of(self.answer(text, {}) | more)

    def answer(self, text: str, more: Mapping[str, Any]) -> dict[str, Any]:
        head = {"model": self.heading.model, "created_at": time_of(self.heading.created)}
        return head | self.form.say(text, more) | {"done": False}

    def content(self, index: int, text: str) -> str | None:
        """Return the text beside reasoning; None for calls of tools."""
        return content_of(self.make_reader(), text)

    def end(self, stream: Stream, verdicts: Mapping[int, Verdict]) -> bytes:
        """Return the last line of a complete answer."""
        return self.line("", **self.ended(stream.request, stream.final_usage, verdicts))

    def failure(self, error: PontilError) -> bytes:
        """Return the last line of a stream that broke."""
        return line_of(ollama_error(str(error)))

    def whole(self, choices: Sequence[ReplyChoice], usage: Usage, verdicts: Mapping[int, Verdict]) -> dict[str, Any]:
        (choice,) = choices
        # Logprobs are told with the whole.
        self.take(Delta(choice.text, choice.ids, 0, []))
        self.take(Ended(0, choice.reason or "stop", choice.stop_reason))
        thoughts = "".join(self.texts[Reasoning])
        more = ({"thinking": thoughts} if thoughts else {}) | (
            {"tool_calls": self.calls.told} if self.calls.told else {}
        )
        ended = self.ended(choice.request, usage, verdicts)
        return self.answer("".join(self.texts[Content]), more) | ended | self.logprobs(choice)

    def ended(self, request: Request, usage: Usage, verdicts: Mapping[int, Verdict]) -> dict[str, Any]:
        """Return the fields of a complete answer: the workers' counts, and durations. No model is loaded for one."""
        now, times = self.received.clock(), request.times
        first = now if times.first_token is None else times.first_token
        return (
            {
                "done": True,
                "done_reason": self.reason,
                "total_duration": nanoseconds(now - self.received.at),
                "load_duration": 0,
                "prompt_eval_count": usage.prompt_tokens,
                "prompt_eval_duration": nanoseconds(first - times.arrived),
                "eval_count": usage.completion_tokens,
                "eval_duration": nanoseconds(now - first),
            }
            | receipt_field(self.receipts)
            | (schema_field(verdicts[0]) if 0 in verdicts else {})
        )
