# SPDX-License-Identifier: Apache-2.0
"""From admitted streams to a reply, whole or as events. Whatever happens, no stream is left working for nobody."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import accumulate

from sanic import HTTPResponse, Request
from sanic.response import raw

from pontil.http.error_object import error_of
from pontil.http.reply_shape import Choice, ReplyShape
from pontil.http.sse import DONE, KEEP_ALIVE, EventWriter, event
from pontil.runtime.accounting.counts import Usage
from pontil.runtime.errors import PontilError
from pontil.runtime.proxy.mailbox import Delta, Ended, Event, Finished
from pontil.runtime.proxy.stream import Stream

# Silence, in seconds, after which a stream that has begun gets a comment.
KEEP_ALIVE_AFTER = 10.0
NOTHING = Usage(0, 0, 0)

# An event of one of several streams, under the index of the choice it is about; None is silence.
Said = tuple[int, Event | None]


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
    choices = [Choice(stream) for stream in streams for _ in range(stream.choices)]
    usage = NOTHING
    async with aclosing(events(streams, None)) as arriving:
        async for index, said in arriving:
            if isinstance(said, Finished):
                usage += said.usage
            elif isinstance(said, Ended):
                choices[index].reason = said.reason
            elif said is not None:
                choices[index].add(said)
    await settle(streams)
    body = json.dumps(shape.whole(choices, usage), ensure_ascii=False).encode()
    return raw(body, content_type="application/json", headers=headers)


async def reply_streaming(writer: EventWriter, streams: Sequence[Stream], shape: ReplyShape) -> None:
    """Nothing is sent before the first event, so that until then every error can still be an HTTP status."""
    usage = NOTHING
    rendering = Rendering(streams, shape)
    try:
        async with aclosing(events(streams, KEEP_ALIVE_AFTER)) as arriving:
            async for index, said in arriving:
                if data := rendering.of(index, said):
                    await writer.send(data)
                if isinstance(said, Finished):
                    usage += said.usage
    except PontilError as error:
        if not writer.begun:
            raise
        await settle(streams)
        await writer.send(event(error_of(error)))
    else:
        await settle(streams)
        await writer.send((shape.usage_chunk(usage) if shape.delivery.include_usage else b"") + DONE)
    await writer.end()


async def settle(streams: Sequence[Stream]) -> None:
    """The end of an answer is sent once its usage is written down (A12)."""
    for stream in streams:
        await stream.settled()


class Rendering:
    """The bytes of the events of one reply; a choice's first are led by its opening."""

    def __init__(self, streams: Sequence[Stream], shape: ReplyShape) -> None:
        self.streams, self.shape = streams, shape
        self.owners = [stream for stream in streams for _ in range(stream.choices)]
        self.opened: set[int] = set()

    def of(self, index: int, said: Event | None) -> bytes:
        """Silence counts once something was said."""
        shape = self.shape
        if said is None:
            return KEEP_ALIVE if self.opened else b""
        if isinstance(said, Finished):
            return b""
        lead = self.opening(index)
        running = self.running_usage if shape.delivery.continuous_usage else None
        if isinstance(said, Ended):
            return lead + shape.last_chunk(index, said.reason, running)
        if said.text or said.logprobs or shape.delivery.token_ids:
            return lead + shape.chunk(index, said, running)
        return lead

    def opening(self, index: int) -> bytes:
        if index in self.opened:
            return b""
        self.opened.add(index)
        return self.shape.opening(index, self.owners[index])

    @property
    def running_usage(self) -> Usage:
        return sum((stream.usage for stream in self.streams), NOTHING)


def index_of(first: int, said: Event | None) -> int:
    """The index of the choice an event is about, for a stream whose choices are counted from `first`."""
    return first + said.choice if isinstance(said, Delta | Ended) else first


async def events(streams: Sequence[Stream], patience: float | None) -> AsyncGenerator[Said, None]:
    """What any of the streams says, until all have finished; None after silence.

    Raises what ended one of them. One stream, by far the commonest case, needs no task of its own.
    """
    if len(streams) > 1:
        async with aclosing(merged(streams, patience)) as arriving:
            async for item in arriving:
                yield item
        return
    said: Event | None = None
    while not isinstance(said, Finished):
        said = await streams[0].take(patience)
        yield index_of(0, said), said


async def merged(streams: Sequence[Stream], patience: float | None) -> AsyncGenerator[Said, None]:
    """Each stream is read by a task that waits until its event was taken, so that a slow reader slows all of them."""
    queue: asyncio.Queue[tuple[int, Event | PontilError | None]] = asyncio.Queue(maxsize=1)
    firsts = [0, *accumulate(stream.choices for stream in streams)]
    tasks = [
        asyncio.create_task(forward(first, stream, queue, patience))
        for first, stream in zip(firsts, streams, strict=False)
    ]
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
    first: int,
    stream: Stream,
    queue: "asyncio.Queue[tuple[int, Event | PontilError | None]]",
    patience: float | None,
) -> None:
    said: Event | None = None
    while not isinstance(said, Finished):
        try:
            said = await stream.take(patience)
        except PontilError as error:
            await queue.put((first, error))
            return
        await queue.put((index_of(first, said), said))
