# SPDX-License-Identifier: Apache-2.0
"""The endpoint that answers several conversations at once, as vLLM has it."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sanic import HTTPResponse, Request

from pontil.http.fields.prompt import MAX_PROMPTS
from pontil.http.intake.body import understood
from pontil.http.openai.chat.prompt import Message, chat_prompt, messages_of
from pontil.http.openai.chat.request import CHAT, ChatRequest, chat_of
from pontil.http.openai.completions.ready_request import ReadyChat
from pontil.http.openai.completions.route import GenerationRoutes, Preparation
from pontil.http.schema.message_schema import MAX_MESSAGES, MESSAGES_SCHEMA
from pontil.http.schema.parameter import Parameter, ParameterTable, Schema
from pontil.http.schema.parameter_types import NeutralType, ShapedType
from pontil.http.schema.reader import Fields, IgnoredFields
from pontil.http.stream.receipts import ReceiptNote, check_no_receipt
from pontil.http.stream.reply import reply_whole
from pontil.http.stream.reply_shape import ChatShape, ReplyChoice
from pontil.http.stream.schema_watch import SchemaWatch
from pontil.http.stream.usage_shape import chat_usage_object
from pontil.runtime.accounting.counts import Usage
from pontil.runtime.errors import RequestError
from pontil.runtime.grammar.processes.verdict import Verdict
from pontil.runtime.proxy.admission.control import check_together

# Conversations of a request.
MAX_CONVERSATIONS = MAX_PROMPTS
MESSAGES = "messages"
ALONE = "is for /v1/chat/completions: leave it out"
# Parameters that only chats have, with the values of them that ask for nothing.
OF_ONE_CHAT: dict[str, tuple[Any, ...]] = {
    "stream": (False,),
    "stream_options": (),
    "tools": ([],),
    "tool_choice": ("none",),
    "functions": ([],),
    "function_call": ("none",),
    "modalities": (["text"],),
    "audio": (),
    "kv_transfer_params": ({},),
}


@dataclass(frozen=True, slots=True)
class ChatBatchRequest:
    """At least one chat. They differ in their messages only."""

    chats: tuple[ChatRequest, ...]


def read_chat_batch(data: Mapping[str, Any], vocab_size: int, ignored: IgnoredFields | None = None) -> ChatBatchRequest:
    """Parse the request. Raises RequestError, naming the parameter, for anything invalid."""
    fields = Fields(data, vocab_size=vocab_size, ignored=ignored)
    # Parameters of one chat ask for nothing here, so that their defaults hold.
    values = TABLE.read(fields) | NEUTRAL
    prompts = []
    for index, messages in enumerate(values[MESSAGES]):
        with naming(index):
            prompts.append(chat_prompt(fields, values | {MESSAGES: messages}))
    first = chat_of(fields, values | {MESSAGES: values[MESSAGES][0]})
    return ChatBatchRequest(tuple(replace(first, prompt=prompt) for prompt in prompts))


def place_of(index: int) -> str:
    """Return the path of a conversation."""
    return f"{MESSAGES}[{index}]"


@contextmanager
def naming(index: int) -> Iterator[None]:
    """Let errors name the conversation."""
    try:
        yield
    except RequestError as error:
        place = place_of(index)
        param = place if error.param in (MESSAGES, "prompt") else error.param
        says = str(error) if place in str(error) else f"{error} (in {place})"
        raise RequestError(says, status=error.status, param=param, code=error.code) from None


def read_conversations(fields: Fields, name: str) -> tuple[tuple[Message, ...], ...]:
    value = fields.take(name)
    if not isinstance(value, list):
        raise fields.typed(name, value, "a list of conversations")
    if not value:
        raise fields.wrong(name, "is empty: give at least one conversation")
    if len(value) > MAX_CONVERSATIONS:
        raise fields.wrong(name, f"may hold at most {MAX_CONVERSATIONS} conversations")
    return tuple(messages_of(fields, place_of(index), conversation) for index, conversation in enumerate(value))


CONVERSATIONS_SCHEMA: Schema = {
    "title": f"conversations, at most {MAX_CONVERSATIONS}, each of at most {MAX_MESSAGES} messages",
    "type": "array",
    "items": MESSAGES_SCHEMA,
    "minItems": 1,
    "maxItems": MAX_CONVERSATIONS,
}


def of_batch(parameter: Parameter) -> Parameter:
    """Return the form in which a batch has this parameter of a chat."""
    if parameter.name == MESSAGES:
        return replace(parameter, kind=ShapedType(read_conversations, CONVERSATIONS_SCHEMA), says="lists of messages")
    if parameter.name == "n":
        return replace(parameter, kind=NeutralType((1,), "must be 1: each conversation gets one answer"))
    if parameter.name in OF_ONE_CHAT:
        return replace(parameter, kind=NeutralType(OF_ONE_CHAT[parameter.name], ALONE))
    return parameter


CHAT_BATCH = tuple(map(of_batch, CHAT))
NEUTRAL = {parameter.name: parameter.default for parameter in CHAT_BATCH if parameter.name in OF_ONE_CHAT}
TABLE = ParameterTable(CHAT_BATCH)


# Fields about a prompt, which a chat has once for all its choices.
OF_PROMPTS = ("prompt_token_ids", "prompt_logprobs")


class ChatBatchShape:
    """The JSON of such a reply: one chat whose choices are those of the conversations, each written by its own shape.
    Fields about a prompt are in the choice that answers it."""

    def __init__(self, shapes: Sequence[ChatShape], schema_watch: SchemaWatch | None = None) -> None:
        self.shapes, self.schema_watch = tuple(shapes), schema_watch
        self.receipts: ReceiptNote | None = None

    def content(self, index: int, text: str) -> str | None:
        return self.shapes[index].content(0, text)

    def whole(self, choices: Sequence[ReplyChoice], usage: Usage, verdicts: Mapping[int, Verdict]) -> dict[str, Any]:
        choice_objects = []
        for index, (shape, choice) in enumerate(zip(self.shapes, choices, strict=True)):
            chat_answer = shape.whole([choice], usage, {0: verdicts[index]} if index in verdicts else {})
            about = {name: chat_answer[name] for name in OF_PROMPTS if name in chat_answer}
            choice_objects.append(chat_answer["choices"][0] | {"index": index} | about)
        first = self.shapes[0]
        usage_shown = first.of_class(chat_usage_object(usage, self.reasoning_tokens(), first.prompt_details))
        return {"object": first.whole_object} | first.base | {"choices": choice_objects, "usage": usage_shown}

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
        check_no_receipt(request, "a batch of chats in one request")
        batch_request = await self.routes.read(request, read_chat_batch)
        routes = self.routes.chosen(request)
        ready = await self.prepare(request, batch_request, routes.preparation)
        heading = routes.heading(request, "chatcmpl-", ready[0])
        shape = ChatBatchShape(
            [routes.chat_shape(ready_chat, heading) for ready_chat in ready], routes.schema_watch(ready[0].sampling)
        )
        works = [work for ready_chat in ready for work in ready_chat.works]
        await routes.preparation.look_up(replace(ready[0], works=works))
        stream = routes.proxy.submit(ready[0].ticket, *works, snapshot=ready[0].snapshot)
        understood(request)
        try:
            return await reply_whole(stream, shape)
        finally:
            stream.cancel()

    async def prepare(
        self, request: Request, batch_request: ChatBatchRequest, preparation: Preparation
    ) -> list[ReadyChat]:
        """Check the conversations, tokenize them and fit each to the context."""
        first = batch_request.chats[0]
        ticket = preparation.complete(request.ctx.ticket, first)
        snapshot = await preparation.snapshot(ticket)
        check_together(snapshot.workers, len(batch_request.chats), MESSAGES, "conversations")
        preparation.proxy.admissions.check_limits(ticket, len(batch_request.chats))
        sampling = await preparation.usable(first.sampling)
        ready = []
        for index, chat in enumerate(batch_request.chats):
            with naming(index):
                ready_chat = await preparation.fitted(
                    ticket, replace(chat, sampling=sampling), snapshot, place_of(index)
                )
            ready.append(ready_chat)
            # Short conversations are rendered on the event loop, which has its turns in between.
            await asyncio.sleep(0)
        return ready
