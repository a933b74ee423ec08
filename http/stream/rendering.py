# SPDX-License-Identifier: Apache-2.0
"""Delivery of an admitted stream as a reply, whole or as events. Requests without a reader are always cancelled."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from sanic import HTTPResponse, Request
from sanic.response import raw

from pontil.http.stream.reply_shape import ReplyChoice, ReplyHeading
from pontil.http.stream.schema_watch import SchemaWatch, schema_header
from pontil.http.stream.sse import EventWriter, StreamWriter
from pontil.runtime.accounting.counts import Usage
from pontil.runtime.errors import PontilError
from pontil.runtime.grammar.processes.verdict import Verdict
from pontil.runtime.proxy.requests.answer import ChoiceEvent, Ended
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.timeline.received import noted
from pontil.runtime.timeline.timeline import WRITE

# Makes the body of a whole answer.
WriteAnswer = Callable[[Mapping[str, Any]], Awaitable[bytes]]


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

    def events(self, stream: Stream, said: Sequence[ChoiceEvent]) -> bytes:
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
    request: Request, stream: Stream, shape: ReplyFormat, keep: KeepAnswer = keep_nothing, write: WriteAnswer = as_json
) -> HTTPResponse | None:
    """Answer the request; return None if it was streamed. Once the answer is complete `keep` is called, before its end
    is made and sent: it may change what the end says. `write` makes the body of one that is not streamed. Raises
    PontilError only while nothing has been sent."""
    try:
        if shape.streamed:
            writer = EventWriter(request, lambda: route_of(stream), stream.turn)
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
    """Return the header that names the workers, which must be known."""
    return {"x-pontil-route": stream.route}


async def reply_whole(
    stream: Stream, shape: WholeFormat, keep: KeepAnswer = keep_nothing, write: WriteAnswer = as_json
) -> HTTPResponse:
    choices = [ReplyChoice(request) for request in stream.by_choice]
    for index, said in await stream.all():
        if shape.schema_watch is not None:
            shape.schema_watch.observe(index, said)
        if isinstance(said, Ended):
            choices[index].end(said)
        else:
            choices[index].add(said)
    await stream.settled()
    verdicts = await schema_verdicts(stream, shape)
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
        if shape.schema_watch is not None or keep is not keep_nothing:
            writer.flush()
        await settled(stream, writer)
        verdicts = await schema_verdicts(stream, shape)
        await keep(AnswerEnd(stream.final_usage, verdicts))
        await writer.send(shape.end(stream, verdicts), last=True)
