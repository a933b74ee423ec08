# SPDX-License-Identifier: Apache-2.0
"""The endpoint that answers several conversations at once, as vLLM has it."""

import asyncio
from dataclasses import replace

from sanic import HTTPResponse, Request

from pontil.http.intake.body import understood
from pontil.http.openai.completions.route import GenerationRoutes, ReadyChat
from pontil.http.stream.rendering import reply_whole
from pontil.http.vllm.chat_batch_request import MESSAGES, ChatBatchRequest, naming, place_of, read_chat_batch
from pontil.http.vllm.chat_batch_shape import ChatBatchShape
from pontil.runtime.proxy.admission.control import check_together


class ChatBatchRoutes:
    """The handler, over those of a single chat."""

    def __init__(self, routes: GenerationRoutes) -> None:
        self.routes = routes

    async def chat_batch(self, request: Request) -> HTTPResponse:
        """Answer all of the conversations, or none."""
        routes = self.routes
        ready = await self.prepare(request, await routes.read(request, read_chat_batch))
        heading = routes.heading(request, "chatcmpl", ready[0].snapshot)
        shape = ChatBatchShape(
            [routes.chat_shape(one, heading) for one in ready], routes.schema_watch(ready[0].sampling)
        )
        works = [work for one in ready for work in one.works]
        await routes.preparation.look_up(replace(ready[0], works=works))
        stream = routes.proxy.submit(ready[0].ticket, *works, snapshot=ready[0].snapshot)
        understood(request)
        try:
            return await reply_whole(stream, shape)
        finally:
            stream.cancel()

    async def prepare(self, request: Request, wanted: ChatBatchRequest) -> list[ReadyChat]:
        """Check the conversations, tokenize them and fit each to the context."""
        first, preparation = wanted.chats[0], self.routes.preparation
        ticket = preparation.complete(request.ctx.ticket, first)
        snapshot = preparation.snapshot(ticket)
        check_together(snapshot.workers, len(wanted.chats), MESSAGES, "conversations")
        preparation.proxy.admissions.check_limits(ticket, len(wanted.chats))
        sampling = await preparation.usable(first.sampling)
        ready = []
        for index, chat in enumerate(wanted.chats):
            with naming(index):
                one = await preparation.fitted(ticket, replace(chat, sampling=sampling), snapshot, place_of(index))
            ready.append(one)
            # Short conversations are rendered on the event loop, which has its turns in between.
            await asyncio.sleep(0)
        return ready
