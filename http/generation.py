# SPDX-License-Identifier: Apache-2.0
"""From admitted streams to a reply, whole or as events. Whatever happens, no stream is left working for nobody."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from sanic import HTTPResponse, Request
from sanic.response import raw

from pontil.http.error_object import error_of
from pontil.http.reply_shape import Choice, ReplyShape
from pontil.http.sse import DONE, KEEP_ALIVE, EventWriter, event
from pontil.runtime.accounting.counts import Usage
from pontil.runtime.errors import PontilError
from pontil.runtime.proxy.mailbox import Delta, Finished
from pontil.runtime.proxy.stream import Stream

# Silence, in seconds, after which a stream that has begun gets a comment.
KEEP_ALIVE_AFTER = 10.0
NOTHING = Usage(0, 0, 0)

Event = Delta | Finished | None


async def reply(request: Request, streams: Sequence[Stream], shape: ReplyShape) -> HTTPResponse | None:
    """Answer the request. None: the answer was streamed. Raises PontilError only while nothing has been sent."""
    headers = {"x-pontil-route": ",".join(dict.fromkeys(stream.route for stream in streams))}
    try:
        if shape.delivery.stream:
            await reply_streaming(EventWriter(request, headers), streams, shape)
            return None
        return await reply_whole(streams, shape, headers)
    finally:
        for stream in streams:
            stream.cancel()


async def reply_whole(streams: Sequence[Stream], shape: ReplyShape, headers: dict[str, str]) -> HTTPResponse:
    choices = [Choice() for _ in streams]
    usage = NOTHING
    async with aclosing(events(streams, None)) as arriving:
        async for index, said in arriving:
            if isinstance(said, Finished):
                choices[index].reason = said.reason
                usage += said.usage
            elif said is not None:
                choices[index].text += said.text
                choices[index].ids += said.ids
    body = json.dumps(shape.whole(choices, usage), ensure_ascii=False).encode()
    return raw(body, content_type="application/json", headers=headers)


async def reply_streaming(writer: EventWriter, streams: Sequence[Stream], shape: ReplyShape) -> None:
    """Nothing is sent before the first event, so that until then every error can still be an HTTP status."""
    usage = NOTHING
    opened: set[int] = set()
    try:
        async with aclosing(events(streams, KEEP_ALIVE_AFTER)) as arriving:
            async for index, said in arriving:
                if data := rendered(shape, index, said, streams, opened):
                    await writer.send(data)
                if isinstance(said, Finished):
                    usage += said.usage
    except PontilError as error:
        if not writer.begun:
            raise
        await writer.send(event(error_of(error)))
    else:
        await writer.send((shape.usage_chunk(usage) if shape.delivery.include_usage else b"") + DONE)
    await writer.end()


def rendered(shape: ReplyShape, index: int, said: Event, streams: Sequence[Stream], opened: set[int]) -> bytes:
    """The bytes of one event; a choice's first are led by its opening. Silence counts once something was said."""
    if said is None:
        return KEEP_ALIVE if opened else b""
    lead = b""
    if index not in opened:
        opened.add(index)
        lead = shape.opening(index)
    running = running_usage(streams) if shape.delivery.continuous_usage else None
    if isinstance(said, Finished):
        return lead + shape.last_chunk(index, said.reason, running)
    if said.text or shape.delivery.token_ids:
        return lead + shape.chunk(index, said.text, said.ids, running)
    return lead


def running_usage(streams: Sequence[Stream]) -> Usage:
    return sum((stream.usage for stream in streams), NOTHING)


async def events(streams: Sequence[Stream], patience: float | None) -> AsyncGenerator[tuple[int, Event], None]:
    """What any of the streams says, with its number, until all have finished; None after silence.

    Raises what ended one of them. One stream, by far the commonest case, needs no task of its own.
    """
    if len(streams) > 1:
        async with aclosing(merged(streams, patience)) as arriving:
            async for item in arriving:
                yield item
        return
    said: Event = None
    while not isinstance(said, Finished):
        said = await streams[0].take(patience)
        yield 0, said


async def merged(streams: Sequence[Stream], patience: float | None) -> AsyncGenerator[tuple[int, Event], None]:
    """Each stream is read by a task that waits until its event was taken, so that a slow reader slows all of them."""
    queue: asyncio.Queue[tuple[int, Event | PontilError]] = asyncio.Queue(maxsize=1)
    tasks = [asyncio.create_task(forward(index, stream, queue, patience)) for index, stream in enumerate(streams)]
    left = len(streams)
    try:
        while left:
            index, said = await queue.get()
            if isinstance(said, PontilError):
                raise said
            left -= isinstance(said, Finished)
            yield index, said
    finally:
        for task in tasks:
            task.cancel()


async def forward(
    index: int, stream: Stream, queue: "asyncio.Queue[tuple[int, Event | PontilError]]", patience: float | None
) -> None:
    said: Event = None
    while not isinstance(said, Finished):
        try:
            said = await stream.take(patience)
        except PontilError as error:
            await queue.put((index, error))
            return
        await queue.put((index, said))
