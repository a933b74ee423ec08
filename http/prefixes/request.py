# SPDX-License-Identifier: Apache-2.0
"""Parsers of /v1/prefixes: from JSON to frozen requests. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pontil.http.fields.prompt import MAX_PRIORITY, MAX_SALT_CHARACTERS, PromptFields, salt_of
from pontil.http.openai.chat.prompt import CHAT_PROMPT, ChatPrompt, chat_prompt
from pontil.http.openai.completions.request import Prompt, PromptsType
from pontil.http.schema.parameter import Parameter, ParameterTable, Schema
from pontil.http.schema.parameter_types import FlagType, IntegerType, ShapedType, TextType
from pontil.http.schema.reader import Fields, IgnoredFields

MINUTE, HOUR, DAY = 60, 3600, 86400
DEFAULT_TTL, MOST_TTL = 5 * MINUTE, 7 * DAY
TTL = re.compile(r"([1-9][0-9]{0,6})([smhd])", re.ASCII)
UNITS = {"s": 1, "m": MINUTE, "h": HOUR, "d": DAY}


def read_ttl(fields: Fields, name: str) -> int:
    """Return a time in whole seconds, given as such or as a text with a unit."""
    value = fields.take(name)
    match = TTL.fullmatch(value) if isinstance(value, str) else None
    seconds = value if match is None else int(match[1]) * UNITS[match[2]]
    if isinstance(seconds, bool) or not isinstance(seconds, int):
        raise fields.typed(name, value, 'a number of seconds, or a text like "5m", "1h" or "1d"')
    if not 1 <= seconds <= MOST_TTL:
        raise fields.wrong(name, f"must be from 1 second to {MOST_TTL // DAY} days, which are {MOST_TTL} seconds")
    return seconds


@dataclass(frozen=True, slots=True)
class PrefixWanted:
    """A prefix to be kept for `seconds`: a prompt, or the beginning of a chat."""

    model: str | None
    prompt: Prompt | None
    chat: ChatPrompt | None
    seconds: int
    handling: PromptFields


TTL_SHAPE: Schema = {
    "title": "seconds, or a text such as `5m`",
    "anyOf": [{"type": "integer", "minimum": 1, "maximum": MOST_TTL}, {"type": "string", "pattern": TTL.pattern}],
}
MODEL = Parameter("model", TextType(), "the name of a model that is served; absent: the first one")
PREFIX = (
    MODEL,
    Parameter("prompt", PromptsType(1), "a text, or token ids"),
    CHAT_PROMPT[0].optional,
    *(parameter for parameter in CHAT_PROMPT[1:] if parameter.name != "continue_final_message"),
    Parameter("ttl", ShapedType(read_ttl, TTL_SHAPE), "how long the prefix is kept", DEFAULT_TTL),
    Parameter("add_special_tokens", FlagType(), "what the tokenizer's file puts around it; absent: for a text only"),
    Parameter("cache_salt", TextType(1, MAX_SALT_CHARACTERS), "that of the requests that are to find it"),
    Parameter("prompt_cache_key", TextType(0, MAX_SALT_CHARACTERS), "counts as a part of `cache_salt`"),
    Parameter("priority", IntegerType(-MAX_PRIORITY, MAX_PRIORITY), "who waits for a worker: the lowest goes first", 0),
)
EXTENSION = (Parameter("ttl", ShapedType(read_ttl, TTL_SHAPE), "how long it is kept from now on", required=True),)
PREFIX_TABLE, EXTENSION_TABLE = ParameterTable(PREFIX), ParameterTable(EXTENSION)


def read_prefix(data: Mapping[str, Any], vocab_size: int, ignored: IgnoredFields | None = None) -> PrefixWanted:
    """Parse a request to keep a prefix. Raises RequestError, naming the parameter, for anything invalid."""
    fields = Fields(data, vocab_size=vocab_size, ignored=ignored)
    values = PREFIX_TABLE.read(fields)
    is_chat = values["messages"] is not None
    if is_chat == (values["prompt"] is not None):
        raise fields.wrong("prompt", "or messages has to be there, and only one of them", "missing_required_parameter")
    if not is_chat:
        for parameter in CHAT_PROMPT[1:]:
            if fields.data.get(parameter.name) is not None:
                raise fields.wrong(parameter.name, "is for messages: leave it out")
    special = values["add_special_tokens"]
    salt = salt_of(values["cache_salt"] or "", values["prompt_cache_key"] or "")
    handling = PromptFields(not is_chat if special is None else special, None, salt, values["priority"])
    # Another message may follow: the prefix ends where the last one does.
    without_turn = {"add_generation_prompt": values["add_generation_prompt"] or False, "continue_final_message": False}
    chat = chat_prompt(fields, values | without_turn) if is_chat else None
    prompt = None if is_chat else values["prompt"][0]
    return PrefixWanted(values["model"], prompt, chat, values["ttl"], handling)


def read_extension(data: Mapping[str, Any], vocab_size: int, ignored: IgnoredFields | None = None) -> int:
    """Parse a request to keep a prefix for longer; return the seconds from now on. Raises RequestError."""
    fields = Fields(data, vocab_size=vocab_size, ignored=ignored)
    seconds: int = EXTENSION_TABLE.read(fields)["ttl"]
    return seconds
