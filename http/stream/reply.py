# SPDX-License-Identifier: Apache-2.0
"""Delivery of an admitted stream as a reply, whole or as server-sent events (F4). Requests without a reader are always
cancelled. The client of a stream may be slow or gone (F7), and there is no task switch per token."""

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from sanic import HTTPResponse, Request
from sanic.response import raw

from pontil.http.stream.receipts import ReceiptNote
from pontil.http.stream.reply_shape import ReplyChoice, ReplyHeading
from pontil.http.stream.schema_watch import SchemaWatch, schema_header
from pontil.runtime.accounting.counts import Usage
from pontil.runtime.errors import PontilError
from pontil.runtime.grammar.processes.verdict import Verdict
from pontil.runtime.proxy.requests.answer import ChoiceEvent, Ended
from pontil.runtime.proxy.requests.stream import MessageTurn, Stream, Wakeup
from pontil.runtime.timeline.received import noted
from pontil.runtime.timeline.timeline import WRITE

HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
CONTENT_TYPE = "text/event-stream; charset=utf-8"
# Seconds without data after which a stream that has begun gets a keep-alive.
KEEP_ALIVE_AFTER = 10.0
# Makes the body of a whole answer.
WriteAnswer = Callable[[Mapping[str, Any]], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class StreamFraming:
    """The content type of a stream's body, and what says in it that the stream still runs."""

    content_type: str
    keep_alive: bytes


SERVER_SENT_EVENTS = StreamFraming(CONTENT_TYPE, b": keep-alive\n\n")


class EventStreamResponse(HTTPResponse):
    """The head of a stream. Sanic takes line ends out of every name and value, letter by letter; here that is done only
    for one that has any unprintable character."""

    @property
    def processed_headers(self) -> Any:
        self.headers.setdefault("content-type", self.content_type)
        # The length of a body that is sent in one piece is a number.
        headers = [(name, str(value)) for name, value in self.headers.items()]
        if not all(name.isprintable() and value.isprintable() for name, value in headers):
            return super().processed_headers
        return [(name.encode("ascii"), value.encode()) for name, value in headers]


class EventWriter:
    """The writer of one response's body. The response begins with the first bytes sent, and `headers` is called then. A
    full buffer makes only this stream wait. `pending` is written at the end of the `turn`."""

    def __init__(
        self,
        request: Request,
        headers: Callable[[], dict[str, str]],
        turn: MessageTurn,
        framing: StreamFraming = SERVER_SENT_EVENTS,
    ) -> None:
        self.request, self.headers, self.turn, self.framing = request, headers, turn, framing
        self.protocol: Any = request.protocol
        self.response: Any = None
        self.pending: list[bytes] = []
        self.wrote_at = time.monotonic()

    @property
    def begun(self) -> bool:
        return self.response is not None

    @property
    def has_room(self) -> bool:
        """True if the connection's buffer has room."""
        return bool(self.protocol.has_room)

    @property
    def keeps_up(self) -> bool:
        """True if the response has begun and the buffer has room, as `write` requires."""
        return self.response is not None and self.has_room

    def write(self, data: bytes) -> None:
        """Write data of the body without waiting; the reader must keep up."""
        self.pending.append(data)
        if len(self.pending) == 1:
            self.turn.defer(self.flush)

    def hold(self, data: bytes) -> None:
        """Keep data of the body that goes out with what is written or sent next. An empty chunk would end the body."""
        if data:
            self.pending.append(data)

    def flush(self) -> None:
        """Write the pending data as one chunk. Does nothing if the client has disconnected: that cancels its task
        anyway."""
        if not self.pending:
            return
        data, self.pending = b"".join(self.pending), []
        protocol, self.wrote_at = self.protocol, time.monotonic()
        if not protocol.transport.is_closing():
            protocol.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
            # Restart sanic's response timeout.
            protocol._time = self.wrote_at

    async def send(self, data: bytes, last: bool = False) -> None:
        """Send a chunk after what was held, waiting for room."""
        if not self.begun:
            head = EventStreamResponse(content_type=self.framing.content_type, headers=HEADERS | self.headers())
            self.response = await self.request.respond(head)
        self.wrote_at = time.monotonic()
        if self.pending:
            data, self.pending = b"".join([*self.pending, data]), []
        await self.response.send(data, end_stream=last)


class StreamWriter:
    """The delivery of a stream. While the client keeps up, events are written synchronously by the call that handles
    the worker's message, and this task sleeps (docs/decisions/019). It wakes for the first bytes, for a client that is
    behind, to send a keep-alive, and at the end."""

    def __init__(self, stream: Stream, render: Callable[[Sequence[ChoiceEvent]], bytes], writer: EventWriter) -> None:
        self.stream, self.render, self.writer = stream, render, writer
        self.wakeup = Wakeup()
        self.broken: Exception | None = None

    async def run(self) -> None:
        """Send all events. Raises the error that ended one of the requests; if that comes before the first bytes, none
        are sent."""
        self.stream.expect_whole()
        self.stream.listen(self.on_events)
        while True:
            data = self.render(self.stream.drain())
            if data and (self.writer.begun or self.stream.error is None):
                await self.send(data)
            elif self.stream.is_over:
                break
            else:
                await self.sleep()
        if self.stream.error is not None:
            raise self.stream.error

    async def send(self, data: bytes) -> None:
        """Send data, and let the stream know of its beginning, and while its reader takes nothing."""
        if not self.writer.begun:
            self.stream.begin()
        self.stream.note_reader(takes=self.writer.has_room)
        await self.writer.send(data)
        self.stream.note_reader(takes=True)

    def on_events(self) -> None:
        """Handle new events: write them, or wake the task. While the task is awake it polls by itself."""
        if self.wakeup.is_awaited and not (self.writer.keeps_up and self.write_now()):
            self.wakeup.wake()

    def write_now(self) -> bool:
        """Write the new events; return False if the task has more to do. It sends the last ones with what ends the
        reply, which is one write less."""
        try:
            data = self.render(self.stream.drain())
        except Exception as error:  # Only this reply is broken: the message may have tokens for others.
            self.broken = error
            return False
        if self.stream.is_over:
            self.writer.hold(data)
            return False
        if data:
            self.writer.write(data)
        return not self.stream.has_more

    async def sleep(self) -> None:
        """Wait until the task has something to do, or send a keep-alive after too long a silence (F4)."""
        await self.wakeup.wait(KEEP_ALIVE_AFTER - self.silence if self.writer.begun else None)
        if self.broken is not None:
            raise self.broken
        if self.writer.begun and self.silence >= KEEP_ALIVE_AFTER:
            await self.send(self.writer.framing.keep_alive)

    @property
    def silence(self) -> float:
        return time.monotonic() - self.writer.wrote_at


@dataclass(frozen=True, slots=True)
class AnswerEnd:
    """The end of a complete answer: its usage, and the verdicts on choices that were checked."""

    usage: Usage
    verdicts: Mapping[int, Verdict]


KeepAnswer = Callable[[AnswerEnd], Awaitable[None]]


class WholeFormat(Protocol):
    """The vocabulary of replies that are not streamed. Each has one for every reply."""

    schema_watch: SchemaWatch | None
    """Set if answers have to be checked at their end."""
    receipts: ReceiptNote | None
    """Set if answers are to have receipts."""

    def content(self, index: int, text: str) -> str | None:
        """Return what the client takes for the answer in this choice's text; None if that is something else."""

    def whole(self, choices: Sequence[ReplyChoice], usage: Usage, verdicts: Mapping[int, Verdict]) -> dict[str, Any]:
        """Return the JSON of a complete answer that is not streamed."""


class ReplyFormat(WholeFormat, Protocol):
    """The vocabulary of an endpoint whose replies are `streamed` as events or not."""

    @property
    def heading(self) -> ReplyHeading: ...

    @property
    def streamed(self) -> bool: ...

    def events(self, stream: Stream, choice_events: Sequence[ChoiceEvent]) -> bytes:
        """Return the server-sent events for these events of a stream, which come in order."""

    def end(self, stream: Stream, verdicts: Mapping[int, Verdict]) -> bytes:
        """Return the events after the last one of a complete answer, with the verdicts on choices that were checked."""

    def failure(self, error: PontilError) -> bytes:
        """Return the events that end a stream that broke after its beginning."""


async def keep_nothing(end: AnswerEnd) -> None:
    """Keep nothing of a reply."""


async def as_json(answer: Mapping[str, Any]) -> bytes:
    return json.dumps(answer, ensure_ascii=False).encode()


async def reply(
    request: Request,
    stream: Stream,
    shape: ReplyFormat,
    keep: KeepAnswer = keep_nothing,
    write: WriteAnswer = as_json,
    framing: StreamFraming = SERVER_SENT_EVENTS,
) -> HTTPResponse | None:
    """Answer the request; return None if it was streamed. Once the answer is complete `keep` is called, before its end
    is made and sent: it may change what the end says. `write` makes the body of one that is not streamed. Raises
    PontilError only while nothing has been sent."""
    try:
        if shape.streamed:
            writer = EventWriter(request, lambda: route_of(stream), stream.turn, framing)
            try:
                await reply_streaming(writer, stream, shape, keep)
            finally:
                if writer.begun:
                    # A stream that is cut ends with what was written last.
                    noted(WRITE, writer.wrote_at)
            return None
        return await reply_whole(stream, shape, keep, write)
    finally:
        stream.cancel()


def route_of(stream: Stream) -> dict[str, str]:
    """Return the header that names the workers, which must be known, and those about the work."""
    headers = {"x-pontil-route": stream.route}
    for request in stream.requests:
        headers |= request.work.headers
    return headers


async def reply_whole(
    stream: Stream, shape: WholeFormat, keep: KeepAnswer = keep_nothing, write: WriteAnswer = as_json
) -> HTTPResponse:
    choices = [ReplyChoice(request) for request in stream.by_choice]
    for index, event in await stream.all():
        if shape.schema_watch is not None:
            shape.schema_watch.observe(index, event)
        if isinstance(event, Ended):
            choices[index].end(event)
        else:
            choices[index].add(event)
    await stream.settled()
    verdicts = await schema_verdicts(stream, shape)
    if shape.receipts is not None:
        await shape.receipts.sign(stream)
    answer = shape.whole(choices, stream.final_usage, verdicts)
    await keep(AnswerEnd(stream.final_usage, verdicts))
    return raw(await write(answer), content_type="application/json", headers=route_of(stream) | schema_header(verdicts))


async def schema_verdicts(stream: Stream, shape: WholeFormat) -> dict[int, Verdict]:
    """Check the answers of a reply that has ended, if they have to be checked."""
    watch = shape.schema_watch
    if watch is None:
        return {}
    return await watch.verdicts([shape.content(index, watch.text(index)) for index in range(len(stream.by_choice))])


async def settled(stream: Stream, writer: EventWriter) -> None:
    """Wait until the usage log has every request. What the client could read by then is not held."""
    if not stream.is_settled:
        writer.flush()
        await stream.settled()


async def reply_streaming(
    writer: EventWriter, stream: Stream, shape: ReplyFormat, keep: KeepAnswer = keep_nothing
) -> None:
    """Send the events of a stream. Nothing is sent before the first one, so that until then every error can still be an
    HTTP status. The end of an answer is sent after its usage has been logged (A12), and after the check by its
    schema, where there is one."""
    try:
        await StreamWriter(stream, partial(shape.events, stream), writer).run()
    except PontilError as error:
        if not writer.begun:
            raise
        await settled(stream, writer)
        await writer.send(shape.failure(error), last=True)
    else:
        if shape.schema_watch is not None or shape.receipts is not None or keep is not keep_nothing:
            writer.flush()
        await settled(stream, writer)
        verdicts = await schema_verdicts(stream, shape)
        if shape.receipts is not None:
            await shape.receipts.sign(stream)
        await keep(AnswerEnd(stream.final_usage, verdicts))
        await writer.send(shape.end(stream, verdicts), last=True)
