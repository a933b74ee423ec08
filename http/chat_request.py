# SPDX-License-Identifier: Apache-2.0
"""From the JSON of /v1/chat/completions to a frozen request. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pontil.http.chat_prompt import ChatPrompt, read_chat_prompt
from pontil.http.fields import Fields
from pontil.http.sampling_fields import (
    NEUTRAL,
    Delivery,
    LogprobFields,
    SamplingFields,
    read_delivery,
    read_prompt_logprobs,
    read_salt,
    read_sampling,
)
from pontil.runtime.sampling_params import RANGES

NEUTRAL_HERE: dict[str, tuple[Any, ...]] = NEUTRAL | {
    "parallel_tool_calls": (True, False), "functions": ([],),
    "function_call": ("none", "auto"), "modalities": (["text"],), "audio": (), "prediction": (), "store": (False,),
    "reasoning_effort": (), "verbosity": (), "web_search_options": (), "echo": (False,), "chat_template": (),
    "add_special_tokens": (False,), "safety_identifier": (), "prompt_cache_key": (),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """`prompt` is what the chat template takes."""

    model: str | None
    prompt: ChatPrompt
    sampling: SamplingFields
    delivery: Delivery
    cache_salt: str


def read_chat(data: Mapping[str, Any], vocab_size: int) -> ChatRequest:
    """Raises RequestError, naming the parameter, for anything that is not exactly right."""
    fields = Fields(data)
    request = ChatRequest(
        model=fields.text("model"),
        prompt=read_chat_prompt(fields),
        sampling=read_sampling(fields, vocab_size, ("max_completion_tokens", "max_tokens"), read_logprobs(fields)),
        delivery=read_delivery(fields),
        cache_salt=read_salt(fields),
    )
    fields.text("user")
    fields.neutral(NEUTRAL_HERE)
    fields.finish()
    return request


def read_logprobs(fields: Fields) -> LogprobFields:
    """`logprobs` switches them on, `top_logprobs` says how many of the most likely tokens to show beside each."""
    wanted = fields.boolean("logprobs", False)
    top = fields.integer("top_logprobs", *map(int, RANGES["logprobs"]))
    if top and not wanted:
        raise fields.wrong("top_logprobs", "needs logprobs to be true")
    return LogprobFields((top or 0) if wanted else None, read_prompt_logprobs(fields))
