# SPDX-License-Identifier: Apache-2.0
"""Parameters of both endpoints about the prompt's tokens and its scheduling."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pontil.http.fields.service_tier import SERVICE_TIER, TIERS
from pontil.http.schema.parameter import Parameter
from pontil.http.schema.parameter_types import FlagType, IntegerType, TextType, WordType
from pontil.http.schema.reader import Fields
from pontil.runtime.errors import RequestError
from pontil.runtime.proxy.requests.ticket import NO_KEY, Ticket

MAX_SALT_CHARACTERS = 256
# Prompts of one request.
MAX_PROMPTS = 64
# Truncate to the room that the context leaves beside the output.
TO_FIT = -1
MAX_PRIORITY = (1 << 31) - 1


def special_tokens(default: bool) -> Parameter:
    """Return the parameter with the endpoint's default for adding special tokens."""
    return Parameter("add_special_tokens", FlagType(), "put around the prompt what the tokenizer's file says", default)


PROMPT = (
    Parameter(
        "truncate_prompt_tokens", IntegerType(TO_FIT), "keep this many tokens, the last ones; -1: as many as fit"
    ),
    Parameter("truncation_side", WordType(("left", "right")), "which end of the prompt is cut; absent: left"),
    Parameter("cache_salt", TextType(1, MAX_SALT_CHARACTERS), "prompts with different salts share no cached prefix"),
    Parameter("prompt_cache_key", TextType(0, MAX_SALT_CHARACTERS), "counts as a part of `cache_salt`"),
    Parameter("priority", IntegerType(-MAX_PRIORITY, MAX_PRIORITY), "who waits for a worker: the lowest goes first", 0),
    SERVICE_TIER,
)


@dataclass(frozen=True, slots=True)
class PromptFields:
    """Prompt options. `truncate` None keeps the whole prompt; a number keeps its end, or its beginning. Requests of a
    lower `priority` are admitted first, within the class that `service_tier` names."""

    add_special_tokens: bool
    truncate: int | None
    cache_salt: str
    priority: int
    keeps_beginning: bool = False
    service_tier: str = "auto"

    @property
    def is_whole(self) -> bool:
        """Return whether the prompt is kept whole and so has to fit whole."""
        return self.truncate is None

    def cut(self, prompt: list[int], room: int) -> list[int]:
        """Return the prompt truncated, where the context leaves `room` tokens beside the output."""
        if self.truncate is None:
            return prompt
        kept_tokens = max(1, room if self.truncate == TO_FIT else self.truncate)
        return prompt[:kept_tokens] if self.keeps_beginning else prompt[-kept_tokens:]

    def complete(self, ticket: Ticket, *, share_prefixes: bool) -> Ticket:
        """Return a request's ticket with what its body says. Raises RequestError for a caller that may not go ahead of
        others; going behind them is always allowed."""
        if self.priority < 0 and not ticket.allowance.priority:
            says = "priority is below 0, which your API key may not ask for: leave it out, or have priority=yes put"
            raise RequestError(
                f"{says} behind the key in the key file", status=403, param="priority", code="priority_not_allowed"
            )
        salt = cache_salt(ticket.caller, self.cache_salt, share_prefixes=share_prefixes)
        asked_class = TIERS[self.service_tier]
        service_class = ticket.service_class if asked_class is None else max(asked_class, ticket.service_class)
        return replace(ticket, place=service_class.place(self.priority), cache_salt=salt)


def prompt_fields(fields: Fields, values: Mapping[str, Any]) -> PromptFields:
    truncate = values["truncate_prompt_tokens"]
    if truncate == 0:
        raise fields.wrong("truncate_prompt_tokens", "must be at least 1, or -1 to keep as much as fits, not 0")
    if truncate is None:
        fields.without_effect("truncation_side")
    keeps_beginning = values["truncation_side"] == "right"
    salt = salt_of(values["cache_salt"] or "", values["prompt_cache_key"] or "")
    return PromptFields(
        values["add_special_tokens"], truncate, salt, values["priority"], keeps_beginning, values["service_tier"]
    )


def salt_of(stated_salt: str, key: str) -> str:
    """Return one salt for both parameters, other than for any other two. Without a key it is the stated one."""
    return hashlib.sha256(f"{len(stated_salt)} {stated_salt}{key}".encode()).hexdigest() if key else stated_salt


def cache_salt(caller: str, stated_salt: str, *, share_prefixes: bool) -> str:
    """Return the salt of a request that stated this one, "" for none.

    `cached_tokens` and the time to the first token reveal whether a prompt with the same prefix was sent before: so
    each caller has a prefix cache of its own, unless the operator shares it. The salt is a digest, so that no stated
    value equals another caller's salt; a caller's name has no NUL.
    """
    if share_prefixes or caller == NO_KEY:
        return stated_salt
    return hashlib.sha256(f"{caller}\0{stated_salt}".encode("utf-8", "surrogatepass")).hexdigest()
