# SPDX-License-Identifier: Apache-2.0
"""The endpoint that answers several conversations at once, as vLLM has it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sanic import HTTPResponse, Request

from pontil.http.intake.body import understood
from pontil.http.openai.completions.route import GenerationRoutes, ReadyChat
from pontil.http.stream.reply import reply_whole
from pontil.http.stream.reply_shape import ChatShape, ReplyChoice, chat_usage_object
from pontil.http.stream.schema_watch import SchemaWatch
from pontil.http.vllm.chat_batch_request import MESSAGES, ChatBatchRequest, naming, place_of, read_chat_batch
from pontil.runtime.accounting.counts import Usage
from pontil.runtime.grammar.processes.verdict import Verdict
from pontil.runtime.proxy.admission.control import check_together

# Fields about a prompt, which a chat has once for all its choices.
OF_PROMPTS = ("prompt_token_ids", "prompt_logprobs")


class ChatBatchShape:
    """The JSON of such a reply: one chat whose choices are those of the conversations, each written by its own shape.
    Fields about a prompt are in the choice that answers it."""

    def __init__(self, shapes: Sequence[ChatShape], schema_watch: SchemaWatch | None = None) -> None:
        self.shapes, self.schema_watch = tuple(shapes), schema_watch

    def content(self, index: int, text: str) -> str | None:
        return self.shapes[index].content(0, text)

    def whole(self, choices: Sequence[ReplyChoice], usage: Usage, verdicts: Mapping[int, Verdict]) -> dict[str, Any]:
        shown = []
        for index, (shape, choice) in enumerate(zip(self.shapes, choices, strict=True)):
            own = shape.whole([choice], usage, {0: verdicts[index]} if index in verdicts else {})
            about = {name: own[name] for name in OF_PROMPTS if name in own}
            shown.append(own["choices"][0] | {"index": index} | about)
        first = self.shapes[0]
        usage_shown = chat_usage_object(usage, self.reasoning_tokens())
        return {"object": first.whole_object} | first.base | {"choices": shown, "usage": usage_shown}

    def reasoning_tokens(self) -> int | None:
        """Return the count over all conversations; None if it is not exact for one of them."""
        counts = [shape.reasoning_tokens() for shape in self.shapes]
        return None if None in counts else sum(count or 0 for count in counts)


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
