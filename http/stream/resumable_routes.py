# SPDX-License-Identifier: Apache-2.0
"""Streams that a client can continue: asked for by the header pontil-resume, continued by Last-Event-ID."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import wraps
from typing import Any

from sanic import HTTPResponse, Request
from sanic.http import Stage

from pontil.http.access.endpoint import Handler
from pontil.http.fields.kv_transfer import NAME as KV_PARAMS
from pontil.http.stream.receipts import RECORDED, check_known, wanted
from pontil.http.stream.reply import ReplyFormat
from pontil.http.stream.reply_shape import ReplyHeading
from pontil.http.stream.resumable_format import ResumableFormat
from pontil.http.stream.resume_point import ResumePoint, read_event_id
from pontil.runtime.errors import RequestError
from pontil.runtime.proxy.fleet.worker_release import WorkerRelease
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.generation import Generation, PromptWork
from pontil.runtime.proxy.requests.remote_kv import KeepPrompt
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.proxy.resume.retold_text import RetoldText
from pontil.runtime.proxy.resume.state import STATED
from pontil.runtime.proxy.resume.state import release_of as recorded_release
from pontil.runtime.proxy.resume.stream_journal import StreamJournal
from pontil.runtime.proxy.siblings.stream_record import StreamRecord
from pontil.runtime.receipts.statement import MEDIA

ASKED, CONTINUED = "pontil-resume", "last-event-id"
CODE = "stream_not_found"


@dataclass(slots=True)
class ResumeContext:
    """The wish of a request to begin or continue a stream that can be continued. `body` is that of the request that
    began the stream, once it is known; `since` and `claimed` are set for one that continues a stream, and `retold` for
    the text of its answer so far."""

    path: str
    body: bytes | None = None
    since: ResumePoint | None = None
    claimed: StreamRecord | StreamJournal | None = None
    retold: Sequence[RetoldText] = ()

    @property
    def head(self) -> Mapping[str, Any]:
        """The head of the stream that is continued."""
        record = self.claimed.record if isinstance(self.claimed, StreamJournal) else self.claimed
        assert record is not None, "only a request that continues a stream asks"
        return record.head


def context_of(request: Request) -> ResumeContext | None:
    """Return what this request says about resuming, if it does."""
    context: ResumeContext | None = getattr(request.ctx, "resume", None)
    return context


@dataclass(frozen=True, slots=True)
class ReplyConnection:
    """The connection of the client that reads the reply to a request."""

    request: Request

    def has_begun(self) -> bool:
        return self.request.stream is None or self.request.stream.stage is not Stage.HANDLER

    def cut(self) -> None:
        protocol: Any = self.request.protocol
        protocol.transport.abort()


def check_not_asked(request: Request) -> None:
    """Raise RequestError if a stream is to be continued that cannot be."""
    if request.headers.getone(ASKED, "0") == "1":
        raise RequestError(f"streams of {request.path} cannot be continued: leave out {ASKED}")


def heading_of(request: Request) -> ReplyHeading | None:
    """Return the heading of the stream that this request continues, if it does."""
    context = context_of(request)
    if context is None or context.claimed is None:
        return None
    recorded, known = context.head["heading"], [field.name for field in fields(ReplyHeading)]
    # A proxy of a later version may have begun it, and stated more (A4).
    return ReplyHeading(**{name: recorded[name] for name in known if name in recorded})


def check_not_continued(request: Request) -> None:
    """Raise RequestError where an answer in sound is to be one that can be continued."""
    if context_of(request) is not None:
        raise RequestError("an answer in sound cannot be continued: leave out pontil-resume", param="audio")


def check_same(work: PromptWork, head: Mapping[str, Any]) -> None:
    """Raise RequestError where a stream's prompt, made again, has other recordings or images than it began with: those
    at addresses on the network may have changed."""
    media, begun = (about.get(MEDIA, ()) for about in (work.stated, head.get(STATED, {})))
    if [one["digest"] for one in media] != [one["digest"] for one in begun]:
        says = "an image of this stream's request is another one now than when it began: send the request anew"
        raise RequestError(says, status=409, code="stream_has_changed")


def release_of(claimed_stream: StreamRecord | StreamJournal) -> WorkerRelease | None:
    return (
        claimed_stream.request.release
        if isinstance(claimed_stream, StreamJournal)
        else recorded_release(claimed_stream.last)
    )


class ResumableRoutes:
    """The way of such requests through the routes of one proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy

    def serving(self, handler: Handler) -> Handler:
        """Wrap a handler whose streams can be continued."""

        @wraps(handler)
        async def served(request: Request) -> HTTPResponse | None:
            return await self.serve(request, handler)

        return served

    async def serve(self, request: Request, handler: Handler) -> HTTPResponse | None:
        """Have the handler answer a request, or continue what it answered before. Raises RequestError for a stream that
        cannot be continued."""
        event = request.headers.getone(CONTINUED, None)
        if event is None and request.headers.getone(ASKED, "0") != "1":
            return await handler(request)
        context = request.ctx.resume = ResumeContext(request.path)
        if event is None:
            return await handler(request)
        context.since = read_event_id(event)
        self.proxy.admissions.admit_to_rate(request.ctx.ticket)
        claimed_stream = context.claimed = await self.proxy.streams.claim(context.since.name, request.ctx.ticket)
        try:
            if context.head.get("path") != request.path:
                says = f"this stream was begun at {context.head.get('path')!r:.100}: continue it there"
                raise RequestError(says, code=CODE)
            context.body = context.head["body"]
            request.ctx.ticket = replace(
                request.ctx.ticket, release=release_of(claimed_stream), continues=True, has_part=context.since.has_part
            )
            context.retold = await self.proxy.streams.retold(claimed_stream)
            return await handler(request)
        finally:
            # It is the stream's once that has begun.
            if context.claimed is not None:
                self.proxy.streams.put_back(claimed_stream)

    def stream(
        self, request: Request, works: Sequence[PromptWork], form: ReplyFormat, submit: Callable[[], Stream]
    ) -> tuple[Stream, ReplyFormat]:
        """Return the stream that answers a request for these works, and its format: as `submit` makes it, one that is
        recorded besides, or one that goes on."""
        context, params = context_of(request), works[0].params
        if context is None and form.streamed:
            check_not_asked(request)
        if context is None or not (form.streamed or context.claimed):
            return submit(), form
        if len(works) > 1:
            raise RequestError("pontil-resume is for one prompt: send several requests", param="prompt")
        check_known(works)
        streams = self.proxy.streams
        if context.claimed is not None:
            since, claimed_stream = context.since, context.claimed
            assert since is not None, "what is continued has a point"
            check_same(works[0], context.head)
            resumable_format = ResumableFormat(form, since, params)
            context.claimed = None
            request.ctx.stream_id = since.name
            about_it = ReplyConnection(request), request.ctx.ticket, context.retold, works[0]
            return streams.take_up(claimed_stream, *about_it), resumable_format
        if params.logprobs is not None or params.prompt_logprobs is not None:
            raise RequestError(
                "a stream with logprobs cannot be continued: leave out one of logprobs and pontil-resume"
            )
        about: dict[str, Any] = {"path": context.path, "body": context.body or b"", "heading": asdict(form.heading)}
        about[RECORDED] = wanted(request)
        if isinstance(works[0], Generation) and isinstance(works[0].remote_kv, KeepPrompt):
            # Another proxy that restores the stream does not know the blocks that its answer has to tell.
            says = "with do_remote_decode is for an answer that cannot be continued: leave out pontil-resume"
            raise RequestError(f"{KV_PARAMS} {says}", param=KV_PARAMS)
        name, stream = streams.begin(submit(), about, ReplyConnection(request))
        request.ctx.stream_id = name
        return stream, ResumableFormat(form, ResumePoint(name), params)
