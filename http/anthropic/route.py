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
from pontil.http.openai.chat.request import ChatRequest
from pontil.http.openai.completions.remote_prompt import remote_kv
from pontil.http.openai.completions.route import GenerationRoutes

# Beginning of the names that Anthropic's clients have by default.
FAMILY = "claude-"
# Variables by which templates turn reasoning on and off.
SWITCHES = ("enable_thinking", "thinking")


class MessagesRoutes:
    """Handlers over the ones of a chat. `seal` signs reasoning that is shown."""

    def __init__(self, generation: GenerationRoutes, seal: ThinkingSeal) -> None:
        self.generation, self.seal = generation, seal

    async def create_message(self, request: Request) -> HTTPResponse | None:
        generation, preparation = self.generation, self.generation.preparation
        messages_request = await generation.read(request, partial(read_messages_request, seal=self.seal))
        chat = self.chat(messages_request)
        ticket = preparation.complete(request.ctx.ticket, chat)
        generation.proxy.admissions.check_limits(ticket)
        remote = remote_kv(generation.proxy, chat.kv_transfer, chat.sampling, ticket.name)
        # Clients ask for more than many contexts leave.
        chat = replace(chat, sampling=replace(chat.sampling, max_tokens=None))
        ready = await preparation.chat(ticket, chat, remote=remote, most_tokens=messages_request.max_tokens)
        shape = MessagesShape(
            generation.heading(request, PREFIX, ready.snapshot),
            partial(generation.answer_reader, ready),
            self.seal,
            request.ctx.request_id,
            streamed=chat.delivery.stream,
            thinks=messages_request.thinks,
        )
        return await generation.send(request, ready, shape)

    async def count_tokens(self, request: Request) -> HTTPResponse:
        """Return how many tokens the input has, which may be more than the context holds."""
        generation = self.generation
        chat = self.chat(await generation.read(request, partial(read_count_request, seal=self.seal)))
        ticket = generation.preparation.complete(request.ctx.ticket, chat)
        limit = TextLimit(generation.preparation.snapshot(ticket).known_context, whole=False)
        prompt = await generation.prompts.chat(chat.prompt, limit)
        return json_response({"input_tokens": len(prompt.ids)})

    def chat(self, messages_request: MessagesRequest) -> ChatRequest:
        """Return the chat that is answered by the model that is here, which reasons if that is asked for."""
        chat, prompts = messages_request.chat, self.generation.prompts
        ignored, name = chat.prompt.ignored, chat.model
        if name is not None and name != self.generation.model.name and name.startswith(FAMILY) and not ignored.strict:
            ignored.note("model")
            chat = replace(chat, model=None)
        template = prompts.tool_template if chat.prompt.about_tools else prompts.template
        switches = {name: messages_request.thinks for name in SWITCHES if name in template.variables}
        if messages_request.thinks and not (prompts.dialect.thinks or prompts.dialect.has_messages):
            ignored.note("thinking")
        return replace(chat, prompt=replace(chat.prompt, variables={**switches, **chat.prompt.variables}))
