# SPDX-License-Identifier: Apache-2.0
"""Parser of vLLM's /v1/chat/completions/batch: several conversations with the same parameters. Pure."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pontil.http.fields.prompt import MAX_PROMPTS
from pontil.http.openai.chat.prompt import Message, chat_prompt, messages_of
from pontil.http.openai.chat.request import CHAT, ChatRequest, chat_of
from pontil.http.schema.ignored import IgnoredFields
from pontil.http.schema.message_schema import MAX_MESSAGES, MESSAGES_SCHEMA
from pontil.http.schema.parameter import Parameter, ParameterTable, Schema
from pontil.http.schema.parameter_types import NeutralType, ShapedType
from pontil.http.schema.reader import Fields
from pontil.runtime.errors import RequestError

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
    return tuple(messages_of(fields, place_of(index), one) for index, one in enumerate(value))


CONVERSATIONS_SCHEMA: Schema = {
    "title": f"conversations, at most {MAX_CONVERSATIONS}, each of at most {MAX_MESSAGES} messages",
    "type": "array",
    "items": MESSAGES_SCHEMA,
    "minItems": 1,
    "maxItems": MAX_CONVERSATIONS,
}


def of_batch(one: Parameter) -> Parameter:
    """Return the form in which a batch has this parameter of a chat."""
    if one.name == MESSAGES:
        return replace(one, kind=ShapedType(read_conversations, CONVERSATIONS_SCHEMA), says="lists of messages")
    if one.name == "n":
        return replace(one, kind=NeutralType((1,), "must be 1: each conversation gets one answer"))
    if one.name in OF_ONE_CHAT:
        return replace(one, kind=NeutralType(OF_ONE_CHAT[one.name], ALONE))
    return one


CHAT_BATCH = tuple(map(of_batch, CHAT))
NEUTRAL = {one.name: one.default for one in CHAT_BATCH if one.name in OF_ONE_CHAT}
TABLE = ParameterTable(CHAT_BATCH)
