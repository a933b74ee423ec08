# SPDX-License-Identifier: Apache-2.0
"""The endpoints of Anthropic's Messages API, over the path of a chat."""

from dataclasses import replace
from functools import partial

from sanic import HTTPResponse, Request
from sanic.response import json as json_response

from pontil.http.anthropic.request import MessagesRequest, read_count_request, read_messages_request
from pontil.http.anthropic.shape import PREFIX, MessagesShape
from pontil.http.anthropic.thinking_seal import ThinkingSeal
from pontil.http.openai.chat.prompt_reader import TextLimit
from pontil.http.openai.chat.reasoning_switch import with_reasoning
from pontil.http.openai.chat.request import ChatRequest
from pontil.http.openai.completions.route import GenerationRoutes

# Beginning of the names that Anthropic's clients have by default.
FAMILY = "claude-"


class MessagesRoutes:
    """Handlers over the ones of a chat. `seal` signs reasoning that is shown."""

    def __init__(self, generation: GenerationRoutes, seal: ThinkingSeal) -> None:
        self.generation, self.seal = generation, seal

    async def create_message(self, request: Request) -> HTTPResponse | None:
        messages_request = await self.generation.read(request, partial(read_messages_request, seal=self.seal))
        generation = self.generation.chosen(request)
        chat = self.chat(messages_request, generation)
        ready = await generation.ready_chat(request, chat, messages_request.max_tokens, other_form=True)
        shape = MessagesShape(
            generation.heading(request, PREFIX, ready),
            partial(generation.answer_reader, ready),
            self.seal,
            request.ctx.request_id,
            streamed=chat.delivery.stream,
            thinks=messages_request.thinks,
        )
        return await generation.send(request, ready, shape)

    async def count_tokens(self, request: Request) -> HTTPResponse:
        """Return how many tokens the input has, which may be more than the context holds."""
        count_request = await self.generation.read(request, partial(read_count_request, seal=self.seal))
        generation = self.generation.chosen(request)
        chat = self.chat(count_request, generation)
        ticket = generation.preparation.complete(request.ctx.ticket, chat)
        generation.sounds.check(chat, request)
        if chat.prompt.media:
            # Images are fetched and decoded for a count as for an answer.
            generation.proxy.admissions.admit_to_rate(ticket)
        chat = chat.heard(await generation.sounds.heard(chat.prompt, ticket))
        snapshot = await generation.preparation.snapshot(ticket)
        limit = TextLimit(snapshot.known_context, whole=False)
        prompt = await generation.prompts.chat(chat.prompt, limit)
        return json_response({"input_tokens": len(chat.expanded(prompt.ids))})

    def chat(self, messages_request: MessagesRequest, generation: GenerationRoutes) -> ChatRequest:
        """Return the chat that is answered by a model that is here, which reasons if that is asked for."""
        chat, prompts = messages_request.chat, generation.prompts
        ignored, name = chat.prompt.ignored, chat.model
        if name is not None and name != generation.model.name and name.startswith(FAMILY) and not ignored.strict:
            ignored.note("model")
            chat = replace(chat, model=None)
        return with_reasoning(chat, prompts, messages_request.thinks, "thinking")
