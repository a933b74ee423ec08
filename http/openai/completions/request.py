# SPDX-License-Identifier: Apache-2.0
"""Parser of /v1/completions: from JSON to a frozen request. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pontil.http.fields.client_fields import INERT, UNSUPPORTED
from pontil.http.fields.delivery import DELIVERY, Delivery, delivery_fields
from pontil.http.fields.kv_transfer import KV_TRANSFER, KVTransferFields
from pontil.http.fields.prompt import MAX_PROMPTS, PROMPT, PromptFields, prompt_fields, special_tokens
from pontil.http.fields.sampling import SAMPLING, LogprobFields, SamplingFields, parameter, sampling_fields
from pontil.http.schema.parameter import Parameter, ParameterTable, Schema
from pontil.http.schema.parameter_types import FlagType, IntegerType, NeutralType, ShapedType, TextType, ids_schema
from pontil.http.schema.reader import Fields, IgnoredFields

DEFAULT_TOKENS = 16
# Parameters that only chats have, with the values of them that ask for nothing.
OF_CHATS: dict[str, tuple[object, ...]] = {
    "messages": ([],), "max_completion_tokens": (), "top_logprobs": (0,), "tools": ([],), "tool_choice": ("none",),
    "functions": ([],), "function_call": ("none",), "documents": ([],), "chat_template": (),
    "chat_template_kwargs": ({},), "add_generation_prompt": (), "continue_final_message": (False,),
    "modalities": (["text"],), "audio": (), "prediction": (), "web_search_options": (), "thinking_token_budget": (),
}  # fmt: skip

FOR_CHATS = "is for /v1/chat/completions: leave it out"

Prompt = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A completion request. Each prompt is text or token ids, and gets choices of its own."""

    model: str | None
    prompts: tuple[Prompt, ...]
    sampling: SamplingFields
    delivery: Delivery
    handling: PromptFields
    echo: bool
    kv_transfer: KVTransferFields | None = None


def read_completion(
    data: Mapping[str, Any], vocab_size: int, ignored: IgnoredFields | None = None
) -> CompletionRequest:
    """Parse the request. Raises RequestError, naming the parameter, for anything invalid."""
    fields = Fields(data, vocab_size=vocab_size, ignored=ignored)
    values = TABLE.read(fields)
    check_without_answer(fields, values)
    return CompletionRequest(
        model=values["model"],
        prompts=values["prompt"],
        sampling=sampling_fields(fields, values, ("max_tokens",), logprobs_of(values)),
        delivery=delivery_fields(fields, values),
        handling=prompt_fields(fields, values),
        echo=values["echo"],
        kv_transfer=values["kv_transfer_params"],
    )


def check_without_answer(fields: Fields, values: Mapping[str, Any]) -> None:
    """Refuse a request for no answer that does not ask about its prompt either."""
    if values["max_tokens"] != 0:
        return
    if not values["echo"] and values["prompt_logprobs"] is None:
        raise fields.wrong("max_tokens", "is 0, which asks about the prompt alone: set echo or prompt_logprobs too")
    if values["logprob_token_ids"]:
        raise fields.wrong("logprob_token_ids", "is about the answer, and max_tokens is 0: leave out one of the two")


def logprobs_of(values: Mapping[str, Any]) -> LogprobFields:
    """Return the logprob options; an echoed prompt gets as many as the output."""
    count, prompt = values["logprobs"], values["prompt_logprobs"]
    if values["echo"] and count is not None:
        prompt = max(count, prompt or 0)
    return LogprobFields(count, prompt)


@dataclass(frozen=True, slots=True)
class PromptsType:
    """A string, strings, token ids, or lists of token ids (F2); at most so many."""

    most: int

    def read(self, fields: Fields, name: str) -> tuple[Prompt, ...]:
        value = fields.take(name)
        if not isinstance(value, str | list):
            raise fields.typed(name, value, "a string, a list of strings, token ids or lists of token ids")
        many = isinstance(value, list) and bool(value) and isinstance(value[0], str | list)
        values = value if many else [value]
        if len(values) > self.most:
            raise fields.wrong(name, f"may hold at most {self.most} {name}s")
        if len({type(prompt) for prompt in values}) > 1:
            raise fields.wrong(name, "must hold either strings or lists of token ids, not both")
        prompts = tuple(
            prompt if isinstance(prompt, str) else fields.token_ids(name, prompt, fields.vocab_size)
            for prompt in values
        )
        if () in prompts or "" in prompts:
            raise fields.wrong(name, "is empty: give at least one token")
        return prompts

    def schema(self, vocab_size: int) -> Schema:
        text, ids = {"type": "string", "minLength": 1}, ids_schema(vocab_size) | {"minItems": 1}
        many = {"type": "array", "minItems": 1, "maxItems": self.most}
        return {
            "title": f"a text, token ids, or at most {self.most} of either",
            "anyOf": [text, ids, many | {"items": text}, many | {"items": ids}],
        }


LIMIT_SCHEMA: Schema = {"title": "the value of max_tokens", "type": "integer", "minimum": 0}


def read_limit_of_chats(fields: Fields, name: str) -> None:
    """Accept the limit of a chat beside an equal one of a completion, as routers send that know no endpoints."""
    if fields.take(name) != fields.take("max_tokens"):
        raise fields.wrong(name, f"{FOR_CHATS}, and give max_tokens", "unsupported_parameter")
    fields.without_effect(name)


COMPLETION = (
    Parameter("model", TextType(), "the name of a model that is served; absent: the first one"),
    Parameter("prompt", PromptsType(MAX_PROMPTS), "text or token ids", required=True),
    Parameter("max_tokens", IntegerType(0), f"the most tokens of each answer; absent: {DEFAULT_TOKENS}"),
    Parameter("echo", FlagType(), "show the prompt before the answer", False),
    parameter("logprobs"),
    *SAMPLING,
    *DELIVERY,
    special_tokens(True),
    *PROMPT,
    Parameter("suffix", NeutralType(("",)), "text after the answer"),
    *(
        Parameter(name, NeutralType(allowed_values, FOR_CHATS), "of chats")
        for name, allowed_values in OF_CHATS.items()
        if name != "max_completion_tokens"
    ),
    Parameter("max_completion_tokens", ShapedType(read_limit_of_chats, LIMIT_SCHEMA), "of chats"),
    KV_TRANSFER,
    *INERT,
    *UNSUPPORTED,
)
TABLE = ParameterTable(COMPLETION)
