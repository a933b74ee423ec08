# SPDX-License-Identifier: Apache-2.0
"""From the JSON of /v1/completions to a frozen request. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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

MAX_PROMPTS = 64
NEUTRAL_HERE: dict[str, tuple[Any, ...]] = NEUTRAL | {
    "suffix": ("",), "add_special_tokens": (True,),
}  # fmt: skip

Prompt = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """Each prompt is text or token ids, and gets a choice of its own."""

    model: str | None
    prompts: tuple[Prompt, ...]
    sampling: SamplingFields
    delivery: Delivery
    cache_salt: str
    echo: bool


def read_completion(data: Mapping[str, Any], vocab_size: int) -> CompletionRequest:
    """Raises RequestError, naming the parameter, for anything that is not exactly right."""
    fields = Fields(data)
    echo = fields.boolean("echo", False)
    request = CompletionRequest(
        model=fields.text("model"),
        prompts=read_prompts(fields, vocab_size),
        sampling=read_sampling(fields, vocab_size, ("max_tokens",), read_logprobs(fields, echo)),
        delivery=read_delivery(fields),
        cache_salt=read_salt(fields),
        echo=echo,
    )
    fields.text("user")
    fields.neutral(NEUTRAL_HERE)
    fields.finish()
    return request


def read_logprobs(fields: Fields, echo: bool) -> LogprobFields:
    """`logprobs` is how many of the most likely tokens to show. An echoed prompt gets as many."""
    if isinstance(fields.data.get("logprobs"), bool):
        raise fields.wrong("logprobs", "must be an integer here: how many of the most likely tokens to show")
    count = fields.integer("logprobs", *map(int, RANGES["logprobs"]))
    prompt = read_prompt_logprobs(fields)
    if echo and count is not None:
        prompt = max(count, prompt or 0)
    return LogprobFields(count, prompt)


def read_prompts(fields: Fields, vocab_size: int) -> tuple[Prompt, ...]:
    """A string, strings, token ids, or lists of token ids (F2)."""
    value = fields.take("prompt")
    if value is None:
        raise fields.wrong("prompt", "is missing: give text or token ids", "missing_required_parameter")
    if not isinstance(value, str | list):
        raise fields.typed("prompt", value, "a string, a list of strings, token ids or lists of token ids")
    many = isinstance(value, list) and bool(value) and isinstance(value[0], str | list)
    values = value if many else [value]
    if len(values) > MAX_PROMPTS:
        raise fields.wrong("prompt", f"may hold at most {MAX_PROMPTS} prompts")
    if len({type(prompt) for prompt in values}) > 1:
        raise fields.wrong("prompt", "must hold either strings or lists of token ids, not both")
    prompts = tuple(
        prompt if isinstance(prompt, str) else fields.token_ids("prompt", prompt, vocab_size) for prompt in values
    )
    if () in prompts or "" in prompts:
        raise fields.wrong("prompt", "is empty: give at least one token")
    return prompts
