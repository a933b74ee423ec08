# SPDX-License-Identifier: Apache-2.0
"""From the JSON of /v1/chat/completions to a frozen request. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pontil.http.fields import Fields
from pontil.http.json_body import kind_of
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
from pontil.runtime.errors import RequestError
from pontil.runtime.sampling_params import RANGES

# Templates know three roles; "developer" is the newer name of "system".
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
NEUTRAL_MESSAGE: dict[str, tuple[Any, ...]] = {
    "tool_calls": ([],), "function_call": (), "refusal": ("",), "audio": (), "annotations": ([],),
    "reasoning_content": ("",),
}  # fmt: skip
NEUTRAL_HERE: dict[str, tuple[Any, ...]] = NEUTRAL | {
    "tools": ([],), "tool_choice": ("none", "auto"), "parallel_tool_calls": (True, False), "functions": ([],),
    "function_call": ("none", "auto"), "modalities": (["text"],), "audio": (), "prediction": (), "store": (False,),
    "reasoning_effort": (), "verbosity": (), "web_search_options": (), "echo": (False,), "chat_template": (),
    "chat_template_kwargs": ({},), "documents": ([],), "add_generation_prompt": (True,),
    "continue_final_message": (False,), "add_special_tokens": (False,), "safety_identifier": (), "prompt_cache_key": (),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """`messages` are what a chat template takes: role and text."""

    model: str | None
    messages: tuple[dict[str, str], ...]
    sampling: SamplingFields
    delivery: Delivery
    cache_salt: str


def read_chat(data: Mapping[str, Any], vocab_size: int) -> ChatRequest:
    """Raises RequestError, naming the parameter, for anything that is not exactly right."""
    fields = Fields(data)
    request = ChatRequest(
        model=fields.text("model"),
        messages=read_messages(fields),
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


def read_messages(fields: Fields) -> tuple[dict[str, str], ...]:
    value = fields.take("messages")
    if value is None:
        raise fields.wrong("messages", "is missing: give at least one", "missing_required_parameter")
    if not isinstance(value, list):
        raise fields.typed("messages", value, "a list of messages")
    if not value:
        raise fields.wrong("messages", "is empty: give at least one")
    return tuple(read_message(item, f"messages[{index}].") for index, item in enumerate(value))


def read_message(item: Any, path: str) -> dict[str, str]:
    if not isinstance(item, dict):
        raise RequestError(f"{path[:-1]} must be an object, not {kind_of(item)}", param=path[:-1])
    fields = Fields(item, path)
    role = fields.text("role")
    if role not in ROLES:
        raise fields.wrong("role", f"must be one of {', '.join(ROLES)}")
    message = {"role": ROLES[role], "content": read_content(fields)}
    if name := fields.text("name"):
        message["name"] = name
    fields.neutral(NEUTRAL_MESSAGE)
    fields.finish()
    return message


def read_content(fields: Fields) -> str:
    """A string, or text parts that are joined."""
    value = fields.take("content")
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise fields.typed("content", value, "a string or a list of text parts")
    return "".join(read_part(item, f"{fields.path}content[{index}].") for index, item in enumerate(value))


def read_part(item: Any, path: str) -> str:
    if not isinstance(item, dict):
        raise RequestError(f"{path[:-1]} must be an object, not {kind_of(item)}", param=path[:-1])
    fields = Fields(item, path)
    if fields.take("type") != "text":
        raise fields.wrong("type", 'must be "text": nothing else is supported', "unsupported_parameter")
    text = fields.text("text")
    if text is None:
        raise fields.wrong("text", "is missing")
    fields.finish()
    return text
