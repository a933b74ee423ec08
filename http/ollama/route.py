# SPDX-License-Identifier: Apache-2.0
"""The endpoints of Ollama's API that generate, over the path of a chat."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from sanic import HTTPResponse, Request
from sanic.response import json as json_response

from pontil.http.intake.body import check_told_type
from pontil.http.intake.served_model import ServedModel
from pontil.http.ollama.model_name import own_name
from pontil.http.ollama.request import OllamaRequest, read_ollama_chat, read_ollama_generate
from pontil.http.ollama.shape import AnswerForm, OllamaShape, message_answer, text_answer, time_of
from pontil.http.openai.chat.reasoning_switch import with_reasoning
from pontil.http.openai.chat.request import ChatRequest
from pontil.http.openai.completions.ready_request import ReadyRequest
from pontil.http.openai.completions.request import CompletionRequest
from pontil.http.openai.completions.route import GenerationRoutes
from pontil.runtime.chat.answer_reader import AnswerReader

Say = Callable[[str, Mapping[str, Any]], dict[str, Any]]


class OllamaRoutes:
    """Handlers over the ones of a chat."""

    def __init__(self, generation: GenerationRoutes) -> None:
        self.generation = generation

    async def ollama_chat(self, request: Request) -> HTTPResponse | None:
        wanted = await self.generation.read(request, read_ollama_chat, check_told_type)
        return await self.answer(request, wanted, message_answer)

    async def ollama_generate(self, request: Request) -> HTTPResponse | None:
        wanted = await self.generation.read(request, read_ollama_generate, check_told_type)
        return await self.answer(request, wanted, text_answer)

    async def answer(self, request: Request, wanted: OllamaRequest, say: Say) -> HTTPResponse | None:
        """Answer what was read. Where there is nothing to answer, the client asks for the model to be loaded."""
        name = own_name(wanted.model, *(name for model in self.generation.models for name in model.names))
        generation, ticket = self.generation.named.of(name), request.ctx.ticket
        generation.model.check(name, ticket.replay)
        if wanted.generation is None:
            return self.loaded(say, generation.model)
        ready, make_reader = await self.ready(request, wanted, replace(wanted.generation, model=name), generation)
        form = AnswerForm(say, wanted.streamed, wanted.thinks is not False, generation.shown(ready.sampling))
        shape = OllamaShape(generation.heading(request, "", ready), form, make_reader, ticket.received)
        return await generation.send(request, ready, shape, framing=shape.framing)

    async def ready(
        self,
        request: Request,
        wanted: OllamaRequest,
        asked: ChatRequest | CompletionRequest,
        generation: GenerationRoutes,
    ) -> tuple[ReadyRequest, Callable[[], AnswerReader]]:
        """Return the request that can be submitted, and what makes readers of its answer."""
        ticket = request.ctx.ticket
        if isinstance(asked, CompletionRequest):
            completion = await generation.preparation.completion(ticket, asked, wanted.most_tokens)
            return completion, partial(AnswerReader, None, None)
        if wanted.thinks is not None:
            asked = with_reasoning(asked, generation.prompts, wanted.thinks, "think")
        chat = await generation.ready_chat(request, asked, wanted.most_tokens, other_form=True)
        return chat, partial(generation.answer_reader, chat)

    def loaded(self, say: Say, model: ServedModel) -> HTTPResponse:
        """Return what Ollama says of a model that is loaded: it is as long as the server runs."""
        head = {"model": model.name, "created_at": time_of(int(self.generation.proxy.books.started))}
        return json_response(head | say("", {}) | {"done": True, "done_reason": "load"})
