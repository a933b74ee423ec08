# SPDX-License-Identifier: Apache-2.0
"""From the JSON of /v1/chat/completions to a frozen request. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pontil.http.chat_prompt import CHAT_PROMPT, ChatPrompt, chat_prompt
from pontil.http.delivery_fields import DELIVERY, Delivery, delivery_fields
from pontil.http.fields import Fields
from pontil.http.kinds import Flag, Integer, Neutral, Text
from pontil.http.parameter import Parameter, read_all
from pontil.http.prompt_fields import PROMPT, PromptFields, prompt_fields, special_tokens
from pontil.http.sampling_fields import SAMPLING, LogprobFields, SamplingFields, sampling_fields
from pontil.runtime.sampling_params import RANGES


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """`prompt` is what the chat template takes."""

    model: str | None
    prompt: ChatPrompt
    sampling: SamplingFields
    delivery: Delivery
    handling: PromptFields


def read_chat(data: Mapping[str, Any], vocab_size: int) -> ChatRequest:
    """Raises RequestError, naming the parameter, for anything that is not exactly right."""
    fields = Fields(data, vocab_size=vocab_size)
    values = read_all(fields, CHAT)
    limits = ("max_completion_tokens", "max_tokens")
    return ChatRequest(
        model=values["model"],
        prompt=chat_prompt(fields, values),
        sampling=sampling_fields(fields, values, limits, logprobs_of(fields, values)),
        delivery=delivery_fields(fields, values),
        handling=prompt_fields(fields, values),
    )


def logprobs_of(fields: Fields, values: Mapping[str, Any]) -> LogprobFields:
    """`logprobs` switches them on, `top_logprobs` says how many of the most likely tokens to show beside each."""
    wanted, top = values["logprobs"], values["top_logprobs"]
    if top and not wanted:
        raise fields.wrong("top_logprobs", "needs logprobs to be true")
    return LogprobFields((top or 0) if wanted else None, values["prompt_logprobs"])


CHAT = (
    Parameter("model", Text(), "the name of the one model that is served; absent: that one"),
    *CHAT_PROMPT,
    Parameter("max_completion_tokens", Integer(1), "the most tokens of each answer; absent: the rest of the context"),
    Parameter("max_tokens", Integer(1), "the older name of max_completion_tokens"),
    Parameter("logprobs", Flag(), "show the logprobs of the answer's tokens", False),
    Parameter("top_logprobs", Integer(*map(int, RANGES["logprobs"])), "and of so many of the likeliest"),
    *SAMPLING,
    *DELIVERY,
    special_tokens(False),
    *PROMPT,
    Parameter("echo", Neutral((False,)), "show the prompt: for completions"),
    Parameter("functions", Neutral(([],)), "the older name of tools"),
    Parameter("function_call", Neutral(("none", "auto")), "the older name of tool_choice"),
    Parameter("modalities", Neutral((["text"],)), "answers that are no text"),
    Parameter("audio", Neutral(), "answers that are no text"),
    Parameter("prediction", Neutral(), "a text that the answer may repeat"),
    Parameter("store", Neutral((False,)), "keep the answer"),
    Parameter("reasoning_effort", Neutral(), "for models that reason"),
    Parameter("verbosity", Neutral(), "for models that know it"),
    Parameter("web_search_options", Neutral(), "search the web"),
    Parameter("chat_template", Neutral(), "a template of the request's own"),
    Parameter("safety_identifier", Neutral(), "who the end user is"),
    Parameter("prompt_cache_key", Neutral(), "where to look for a cached prefix"),
)
