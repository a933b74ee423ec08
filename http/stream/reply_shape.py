# SPDX-License-Identifier: Apache-2.0
"""The JSON that OpenAI's clients expect: whole answers and the chunks of a stream.

The chunks of a stream differ only in their text, so the bytes around it are made once.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from json.encoder import encode_basestring_ascii
from typing import Any

from pontil.http.fields.delivery import Delivery
from pontil.http.fields.service_tier import class_usage
from pontil.http.stream.error_object import error_of
from pontil.http.stream.logprob_shape import CompletionLogprobs, chat_logprobs, joined, prompt_logprobs
from pontil.http.stream.receipts import ReceiptNote, receipt_field
from pontil.http.stream.schema_watch import SchemaWatch, schema_field, schema_note
from pontil.http.stream.usage_shape import PROMPT_DETAILS, chat_usage_object, usage_before, usage_object
from pontil.runtime.accounting.counts import Usage
from pontil.runtime.errors import PontilError
from pontil.runtime.grammar.processes.verdict import Verdict
from pontil.runtime.proxy.requests.answer import ChoiceEvent, Delta, Ended
from pontil.runtime.proxy.requests.generation import Generation
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Logprobs

# Made once: json.dumps makes an encoder for each call with separators of its own.
COMPACT = json.JSONEncoder(separators=(",", ":"))
DONE = b"data: [DONE]\n\n"


def event(data: Any) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


@dataclass(slots=True)
class ReplyChoice:
    """One choice of a whole reply, collected from the events of `request`."""

    request: Request
    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: Logprobs = field(default_factory=list)
    reason: str | None = None
    stop_reason: str | int | None = None

    def end(self, choice_end: Ended) -> None:
        self.reason, self.stop_reason = choice_end.reason, choice_end.stop_reason

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.ids += delta.ids
        self.logprobs += delta.logprobs


# Fields of a chat's message that OpenAI's clients read and that no model here fills.
NO_REFUSAL: dict[str, Any] = {"refusal": None}
UNFILLED: dict[str, Any] = NO_REFUSAL | {"annotations": []}


def stop_note(choice_end: Ended) -> bytes:
    """Return the field of a stream's last chunk that tells what ended the choice, to continue an object."""
    if choice_end.stop_reason is None:
        return b',"stop_reason":null'
    return b',"stop_reason":' + json.dumps(choice_end.stop_reason).encode()


def kept_field(request: Request) -> dict[str, Any]:
    """Return the field that tells a router where the prompt is kept, if it is."""
    told = request.work.told(request) if isinstance(request.work, Generation) else None
    return {} if told is None else {"kv_transfer_params": told}


def kept_note(request: Request) -> bytes:
    """Return the same for a stream's last chunk, to continue an object."""
    kept = COMPACT.encode(kept_field(request))[1:-1]
    return f",{kept}".encode() if kept else b""


@dataclass(frozen=True, slots=True)
class ReplyHeading:
    """Fields of the reply and of each of its chunks. `created` is in seconds since 1970, `service_tier` the class in
    which it is answered, as the usage tells with the `share` of its key. The same request with the same
    seed gives the same answer as long as `system_fingerprint` stays the same."""

    id: str
    created: int
    model: str
    system_fingerprint: str | None
    service_tier: str = "default"
    share: float | None = None


@dataclass(frozen=True, slots=True)
class ShownText:
    """Options of what a reply shows beside the text: `logprobs` of its tokens, `prompt_logprobs` as a field of their
    own, the prompt itself (`echo`) but for the ids that the tokenizer `added` before its text; in a chat the text that
    the answer goes on with (`continued`)."""

    tokenizer: Tokenizer
    skip_special_tokens: bool = True
    logprobs: bool = False
    prompt_logprobs: bool = False
    echo: bool = False
    added: tuple[int, ...] = ()
    continued: str = ""

    def prompt_text(self, request: Request) -> str:
        """Return the prompt as it was sent, with its special tokens."""
        return self.tokenizer.decode(request.prompt[self.hidden(request) :], skip_special_tokens=False)

    def logprobs_of_prompt(self, request: Request) -> list[dict[str, Any] | None]:
        return prompt_logprobs([entries or None for entries in request.prompt_logprobs], self.tokenizer)

    def hidden(self, request: Request) -> int:
        """Return how many of the prompt's first ids were added; none are where it was cut."""
        return len(self.added) if tuple(request.prompt[: len(self.added)]) == self.added else 0


class ReplyShape(ABC):
    """The JSON of one reply, for either endpoint."""

    whole_object: str
    chunk_object: str

    def __init__(self, heading: ReplyHeading, delivery: Delivery, shown: ShownText) -> None:
        self.heading, self.delivery, self.shown = heading, delivery, shown
        head = {"object": self.chunk_object} | self.base
        self.before = b"data: " + COMPACT.encode(head).encode()[:-1] + b',"choices":['
        # If the client asked for usage every chunk has the field, null except where it is known.
        self.tail = b',"usage":null}\n\n' if delivery.include_usage else b"}\n\n"
        # If chunks show only text, the rest of their bytes is constant for a choice.
        shows_more = shown.logprobs or delivery.token_ids or delivery.continuous_usage
        self.around: dict[int, tuple[bytes, bytes]] | None = None if shows_more else {}
        self.opened: set[int] = set()
        # Set if answers have to be checked at their end. The last chunk of each choice is then `closing`.
        self.schema_watch: SchemaWatch | None = None
        self.receipts: ReceiptNote | None = None

    @property
    def base(self) -> dict[str, Any]:
        """The fields of the reply and of each of its chunks: the heading's but for the share, which usage tells."""
        return {name: value for name, value in asdict(self.heading).items() if name != "share"}

    def events(self, stream: Stream, choice_events: Sequence[ChoiceEvent]) -> bytes:
        """Return the server-sent events for these events of a stream; a choice's opening comes before its first."""
        return b"".join([self.event(stream, index, choice_event) for index, choice_event in choice_events])

    def event(self, stream: Stream, index: int, choice_event: Delta | Ended) -> bytes:
        running = stream.usage if self.delivery.continuous_usage else None
        lead = b"" if index in self.opened else self.open(stream, index, usage_before(running, choice_event))
        if self.schema_watch is not None:
            self.schema_watch.observe(index, choice_event)
            if isinstance(choice_event, Ended):
                return lead
        if isinstance(choice_event, Ended):
            return lead + self.ending(stream, index, choice_event)
        if choice_event.text or choice_event.logprobs or self.delivery.token_ids:
            return lead + self.chunk(index, choice_event, running)
        return lead

    def closing(self, watch: SchemaWatch, stream: Stream, verdicts: Mapping[int, Verdict]) -> bytes:
        """Return the last chunks of choices that were checked, by index: a stream that is told again numbers them as
        before, though its choices may end in another order."""
        return b"".join(
            self.ending(stream, index, choice_end, schema_note(verdicts[index]))
            for index, choice_end in sorted(watch.ended.items())
        )

    def ending(self, stream: Stream, index: int, choice_end: Ended, note: bytes = b"") -> bytes:
        running = stream.usage if self.delivery.continuous_usage else None
        transfer_note = kept_note(stream.by_choice[index])
        return self.last_chunk(index, choice_end.reason, running, stop_note(choice_end) + note, transfer_note)

    def content(self, index: int, text: str) -> str | None:
        """Return what the client takes for the answer in a choice's text; None if that is something else."""
        return text

    def open(self, stream: Stream, index: int, usage: Usage | None) -> bytes:
        self.opened.add(index)
        return self.opening(index, stream.by_choice[index], usage)

    @abstractmethod
    def choice(self, index: int, choice: ReplyChoice) -> dict[str, Any]:
        """Return the JSON of a finished choice of a whole answer."""

    @abstractmethod
    def opening(self, index: int, request: Request, usage: Usage | None = None) -> bytes:
        """Return the chunk before a choice's first text, or nothing."""

    @abstractmethod
    def delta(self, index: int, text: bytes, reason: bytes, logprobs: bytes = b"null") -> bytes:
        """Return a chunk's choice without its closing brace; `text`, `reason` and `logprobs` are JSON."""

    @abstractmethod
    def last_delta(self, index: int, reason: bytes) -> bytes:
        """Return the choice of the chunk with the finish reason, without its closing brace; `reason` is JSON."""

    @abstractmethod
    def logprobs(self, index: int, tokens: Logprobs) -> dict[str, Any]:
        """Return the logprobs object of the next tokens of a choice."""

    def chunk(self, index: int, delta: Delta, usage: Usage | None) -> bytes:
        if self.around is not None:
            before, after = self.around.get(index) or self.around.setdefault(index, self.bytes_around(index))
            return b"%b%b%b" % (before, encode_basestring_ascii(delta.text).encode(), after)
        logprobs = json.dumps(self.logprobs(index, delta.logprobs)).encode() if self.shown.logprobs else b"null"
        return self.framed(self.delta(index, json.dumps(delta.text).encode(), b"null", logprobs), delta.ids, usage)

    def bytes_around(self, index: int) -> tuple[bytes, bytes]:
        # A zero byte marks the place of the text: JSON never contains one.
        before, _, after = self.framed(self.delta(index, b"\0", b"null"), (), None).partition(b"\0")
        return before, after

    def last_chunk(self, index: int, reason: str, usage: Usage | None, note: bytes, kept: bytes = b"") -> bytes:
        return self.framed(self.last_delta(index, encode_basestring_ascii(reason).encode()) + note, (), usage, kept)

    def framed(self, choice: bytes, ids: Sequence[int], usage: Usage | None, kept: bytes = b"") -> bytes:
        ids_field = b',"token_ids":%b}' % json.dumps(list(ids)).encode() if self.delivery.token_ids else b"}"
        return self.before + choice + ids_field + b"]" + kept + self.tail_with(usage)

    def tail_with(self, usage: Usage | None) -> bytes:
        """Return the end of a chunk, which has the running usage if the client asked for that."""
        if usage is None or not self.delivery.continuous_usage:
            return self.tail
        return b',"usage":' + json.dumps(self.usage(usage)).encode() + b"}\n\n"

    @property
    def streamed(self) -> bool:
        return self.delivery.stream

    def end(self, stream: Stream, verdicts: Mapping[int, Verdict]) -> bytes:
        """Return the last events of a complete answer."""
        last = b"" if self.schema_watch is None else self.closing(self.schema_watch, stream, verdicts)
        usage = self.usage_chunk(stream.final_usage) if self.delivery.include_usage else b""
        return last + self.receipt_chunk() + usage + DONE

    def receipt_chunk(self) -> bytes:
        """Return the chunk with the receipts, before the usage's, if they were asked for."""
        told = COMPACT.encode(receipt_field(self.receipts))[1:-1].encode()
        return self.before + b"]," + told + self.tail if told else b""

    def failure(self, error: PontilError) -> bytes:
        """Return the last event of a stream that broke."""
        return event(error_of(error))

    def usage(self, usage: Usage) -> dict[str, Any]:
        return self.of_class(usage_object(usage))

    def of_class(self, usage_fields: dict[str, Any]) -> dict[str, Any]:
        """Return the usage with the class in which it was had."""
        return usage_fields | class_usage(self.heading.service_tier, self.heading.share)

    def usage_chunk(self, usage: Usage) -> bytes:
        """Return the usage chunk, the last before [DONE], for clients that asked for it (A10)."""
        return self.before + b'],"usage":' + json.dumps(self.usage(usage)).encode() + b"}\n\n"

    def whole(
        self, choices: Sequence[ReplyChoice], usage: Usage, verdicts: Mapping[int, Verdict] | None = None
    ) -> dict[str, Any]:
        choice_objects = [
            self.choice(index, choice) | {"stop_reason": choice.stop_reason} for index, choice in enumerate(choices)
        ]
        for index, verdict in (verdicts or {}).items():
            choice_objects[index] |= schema_field(verdict)
        for choice_object, choice in zip(choice_objects, choices, strict=True):
            if self.delivery.token_ids:
                choice_object["token_ids"] = choice.ids
        head = {"object": self.whole_object} | self.base | {"choices": choice_objects, "usage": self.usage(usage)}
        head |= kept_field(choices[0].request) | receipt_field(self.receipts)
        if self.delivery.token_ids:
            self.show_of_prompts(head, choices, "prompt_token_ids", lambda request: request.prompt)
        if self.shown.prompt_logprobs:
            self.show_of_prompts(head, choices, "prompt_logprobs", self.shown.logprobs_of_prompt)
        return head

    @abstractmethod
    def show_of_prompts(
        self, answer: dict[str, Any], choices: Sequence[ReplyChoice], name: str, of: Callable[[Request], Any]
    ) -> None:
        """Add a field about the prompts to a whole answer, in the place where vLLM has it."""


class CompletionShape(ReplyShape):
    """The JSON of /v1/completions. With `echo` the prompt's text and logprobs come first."""

    whole_object = chunk_object = "text_completion"

    def __init__(self, heading: ReplyHeading, delivery: Delivery, shown: ShownText) -> None:
        super().__init__(heading, delivery, shown)
        self.pieces: dict[int, CompletionLogprobs] = {}

    def choice(self, index: int, choice: ReplyChoice) -> dict[str, Any]:
        text, pieces = choice.text, []
        if self.shown.echo:
            text = self.shown.prompt_text(choice.request) + text
            pieces.append(self.echoed(index, choice.request))
        pieces.append(self.logprobs(index, choice.logprobs))
        choice_logprobs = joined(pieces) if self.shown.logprobs else None
        return {"index": index, "text": text, "logprobs": choice_logprobs, "finish_reason": choice.reason}

    def opening(self, index: int, request: Request, usage: Usage | None = None) -> bytes:
        if not self.shown.echo and not self.delivery.token_ids:
            return b""
        text, logprobs = "", b"null"
        if self.shown.echo:
            text = self.shown.prompt_text(request)
            logprobs = json.dumps(self.echoed(index, request)).encode() if self.shown.logprobs else b"null"
        choice = self.delta(index, json.dumps(text).encode(), b"null", logprobs)
        if self.delivery.token_ids:
            choice += b',"prompt_token_ids":' + json.dumps(request.prompt).encode()
        return self.framed(choice, (), usage)

    def show_of_prompts(
        self, answer: dict[str, Any], choices: Sequence[ReplyChoice], name: str, of: Callable[[Request], Any]
    ) -> None:
        for choice_object, choice in zip(answer["choices"], choices, strict=True):
            choice_object[name] = of(choice.request)

    def echoed(self, index: int, request: Request) -> dict[str, Any]:
        """Return the logprobs of the echoed prompt, all null if they were not requested."""
        prompt_entries = [entries or None for entries in request.prompt_logprobs] or [None] * len(request.prompt)
        return self.piece(index).echo(request.prompt, prompt_entries, self.shown.hidden(request))

    def logprobs(self, index: int, tokens: Logprobs) -> dict[str, Any]:
        return self.piece(index).take(tokens)

    def piece(self, index: int) -> CompletionLogprobs:
        """Return the choice's CompletionLogprobs, whose text offsets continue from chunk to chunk."""
        if index not in self.pieces:
            skip, as_ids = self.shown.skip_special_tokens, self.delivery.tokens_as_ids
            self.pieces[index] = CompletionLogprobs(self.shown.tokenizer, skip, as_ids)
        return self.pieces[index]

    def delta(self, index: int, text: bytes, reason: bytes, logprobs: bytes = b"null") -> bytes:
        return b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b' % (index, text, logprobs, reason)

    def last_delta(self, index: int, reason: bytes) -> bytes:
        return self.delta(index, b'""', reason)


class ChatShape(ReplyShape):
    """The JSON of /v1/chat/completions. The role comes in a separate chunk before the text (F4)."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    prompt_details = PROMPT_DETAILS

    def choice(self, index: int, choice: ReplyChoice) -> dict[str, Any]:
        message = {"role": "assistant", "content": self.shown.continued + choice.text} | UNFILLED
        choice_logprobs = self.logprobs(index, choice.logprobs) if self.shown.logprobs else None
        return {"index": index, "message": message, "logprobs": choice_logprobs, "finish_reason": choice.reason}

    def opening(self, index: int, request: Request, usage: Usage | None = None) -> bytes:
        content = json.dumps(self.shown.continued).encode()
        delta = b'{"role":"assistant","content":%b,"refusal":null}' % content
        role = b'{"index":%d,"delta":%b,"logprobs":null,"finish_reason":null}' % (index, delta)
        ids = b',"prompt_token_ids":' + json.dumps(request.prompt).encode() if self.delivery.token_ids else b""
        return self.before + role + b"]" + ids + self.tail_with(usage)

    def show_of_prompts(
        self, answer: dict[str, Any], choices: Sequence[ReplyChoice], name: str, of: Callable[[Request], Any]
    ) -> None:
        answer[name] = of(choices[0].request)

    def logprobs(self, index: int, tokens: Logprobs) -> dict[str, Any]:
        return chat_logprobs(tokens, self.shown.tokenizer, self.delivery.tokens_as_ids) | NO_REFUSAL

    def usage(self, usage: Usage) -> dict[str, Any]:
        return self.of_class(chat_usage_object(usage, self.reasoning_tokens(), self.prompt_details))

    def reasoning_tokens(self) -> int | None:
        """Return how many tokens so far were reasoning; None if that is not known."""
        return 0

    def delta(self, index: int, text: bytes, reason: bytes, logprobs: bytes = b"null") -> bytes:
        return b'{"index":%d,"delta":{"content":%b},"logprobs":%b,"finish_reason":%b' % (index, text, logprobs, reason)

    def last_delta(self, index: int, reason: bytes) -> bytes:
        return b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":%b' % (index, reason)
