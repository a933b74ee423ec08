# SPDX-License-Identifier: Apache-2.0
"""The endpoint that answers several conversations at once, as vLLM has it."""

import asyncio
from dataclasses import replace

from sanic import HTTPResponse, Request

from pontil.http.openai.completions.route import GenerationRoutes, ReadyChat, prefixes_of
from pontil.http.stream.rendering import reply_whole
from pontil.http.stream.resumable_routes import check_limits
from pontil.http.vllm.chat_batch_request import MESSAGES, ChatBatchRequest, naming, place_of, read_chat_batch
from pontil.http.vllm.chat_batch_shape import ChatBatchShape
from pontil.runtime.proxy.admission.checks import check_together


class ChatBatchRoutes:
    """The handler, over those of a single chat."""

    def __init__(self, routes: GenerationRoutes) -> None:
        self.routes = routes

    async def chat_batch(self, request: Request) -> HTTPResponse:
        """Answer all of the conversations, or none."""
        routes = self.routes
        wanted = await routes.bodies.read(request, routes.reading(request, read_chat_batch))
        ready = await self.ready(wanted, request)
        watch = routes.schema_watch(ready[0].wanted.sampling)
        shape = ChatBatchShape([routes.chat_shape(one) for one in ready], watch)
        routes.bodies.in_flight.let_go(request)
        admitted = [one.admitted for one in ready]
        prefixes = await prefixes_of(admitted, ready[0].ticket, routes.proxy)
        stream = routes.submit(ready[0].ticket, admitted, ready[0].snapshot, prefixes)
        try:
            return await reply_whole(stream, shape)
        finally:
            stream.cancel()

    async def ready(self, wanted: ChatBatchRequest, request: Request) -> list[ReadyChat]:
        """Check the conversations, tokenize them and fit each to the context."""
        first = wanted.chats[0]
        ticket, snapshot = self.routes.ticket(first, request), self.routes.snapshot_for(request)
        check_together(snapshot.workers, len(wanted.chats), MESSAGES, "conversations")
        check_limits(self.routes.proxy, request, len(wanted.chats))
        sampling = first.sampling
        if sampling.structure is not None:
            sampling = await self.routes.usable(sampling)
        ready = []
        for index, chat in enumerate(wanted.chats):
            with naming(index):
                one = await self.routes.fitted(ticket, replace(chat, sampling=sampling), snapshot, place_of(index))
            ready.append(one)
            # Short conversations are rendered on the event loop, which has its turns in between.
            await asyncio.sleep(0)
        return ready
