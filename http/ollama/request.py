# SPDX-License-Identifier: Apache-2.0
"""Parsers of /api/chat and /api/generate: from JSON to the request of a chat, or of a completion. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pontil.http.fields.client_fields import UNSUPPORTED
from pontil.http.fields.delivery import Delivery
from pontil.http.fields.prompt import PromptFields, prompt_fields
from pontil.http.fields.sampling import LogprobFields, SamplingFields, parameter
from pontil.http.fields.structured_output import OutputStructure, schema_structure, written
from pontil.http.ollama.options import (
    CHOICE,
    DEFAULTS,
    OPTIONS_TYPE,
    TOOL_LIST,
    UNASKED,
    most_tokens,
    prompt_values,
    sampling_of,
)
from pontil.http.openai.chat.function_messages import as_tools
from pontil.http.openai.chat.prompt import Message, chat_prompt, read_message
from pontil.http.openai.chat.request import ChatRequest, logprobs_of
from pontil.http.openai.completions.request import CompletionRequest
from pontil.http.schema.message_schema import MAX_MESSAGES, MESSAGES_SCHEMA
from pontil.http.schema.parameter import Parameter, ParameterTable
from pontil.http.schema.parameter_types import FlagType, InertType, NeutralType, ShapedType, TextType
from pontil.http.schema.reader import Fields, IgnoredFields
from pontil.runtime.grammar.grammar_text import bounded_object, grammar_of_schema

LEVELS = ("low", "medium", "high", "max")
JSON = "json"
# Ollama's names of a message's members, with those that chats have.
MEMBERS = {"thinking": "reasoning_content", "tool_name": "name"}
SIGHT = "are taken by /v1/chat/completions, where the model sees: leave them out"


@dataclass(frozen=True, slots=True)
class OllamaRequest:
    """A request for an answer of at most `most_tokens`, or of what the context leaves. Without a `generation` there is
    nothing to answer: the client wants the model loaded. `thinks` None leaves it to the model whether it reasons."""

    model: str | None
    generation: ChatRequest | CompletionRequest | None
    streamed: bool
    thinks: bool | None
    most_tokens: int | None


def read_ollama_chat(data: Mapping[str, Any], vocab_size: int, ignored: IgnoredFields | None = None) -> OllamaRequest:
    """Parse the request of a chat. Raises RequestError, naming the parameter, for anything invalid."""
    fields = Fields(data, vocab_size=vocab_size, ignored=ignored)
    values = CHAT_TABLE.read(fields)
    return wanted(values, chat_of(fields, values, values["messages"]) if values["messages"] else None)


def read_ollama_generate(
    data: Mapping[str, Any], vocab_size: int, ignored: IgnoredFields | None = None
) -> OllamaRequest:
    """Parse the request of one turn, or of a text that is continued as it stands where it is `raw`. Raises
    RequestError, naming the parameter, for anything invalid."""
    fields = Fields(data, vocab_size=vocab_size, ignored=ignored)
    values = GENERATE_TABLE.read(fields)
    prompt, system = values["prompt"], values["system"]
    if values["raw"] and system:
        raise fields.wrong("system", "is not shown where raw is set: put it into the prompt")
    if not prompt:
        return wanted(values, None)
    if values["raw"]:
        return wanted(values, completion_of(fields, values))
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    return wanted(values, chat_of(fields, {**values, "tools": ()}, (*messages, {"role": "user", "content": prompt})))


def wanted(values: Mapping[str, Any], generation: ChatRequest | CompletionRequest | None) -> OllamaRequest:
    thinks = None if values["think"] is None else values["think"] is not False
    most = most_tokens(values["options"]) if values["options"] else None
    return OllamaRequest(values["model"], generation, values["stream"], thinks, most)


@dataclass(frozen=True, slots=True)
class CommonParts:
    """The parts that a chat and a completion have alike."""

    sampling: SamplingFields
    delivery: Delivery
    handling: PromptFields


def common_parts(fields: Fields, values: Mapping[str, Any]) -> CommonParts:
    logprobs: LogprobFields = logprobs_of(fields, {**values, "prompt_logprobs": None})
    delivery = Delivery(values["stream"], include_usage=True, continuous_usage=False, token_ids=False)
    return CommonParts(sampling_of(fields, values, logprobs), delivery, prompt_fields(fields, prompt_values(values)))


def completion_of(fields: Fields, values: Mapping[str, Any]) -> CompletionRequest:
    parts = common_parts(fields, values)
    handling = replace(parts.handling, add_special_tokens=True)
    return CompletionRequest(None, (values["prompt"],), parts.sampling, parts.delivery, handling, echo=False)


def chat_of(fields: Fields, values: Mapping[str, Any], messages: tuple[Message, ...]) -> ChatRequest:
    parts, last = common_parts(fields, values), messages[-1]
    # The answer goes on with what the assistant has begun.
    goes_on = last["role"] == "assistant" and bool(last.get("content")) and "tool_calls" not in last
    level = values["think"] if isinstance(values["think"], str) else None
    options = values["options"] or DEFAULTS
    chat_values = {**UNASKED} | {name: options[name] for name in CHOICE} | {"tools": values["tools"]}
    chat_values |= {"messages": messages, "continue_final_message": goes_on, "reasoning_effort": level}
    return ChatRequest(
        model=None,
        prompt=chat_prompt(fields, chat_values, {"reasoning_effort": "think"}),
        sampling=parts.sampling,
        delivery=parts.delivery,
        handling=parts.handling,
        include_reasoning=values["think"] is not False,
    )


def read_turns(fields: Fields, name: str) -> tuple[Message, ...]:
    """Return the messages; none asks for the model to be loaded."""
    return tuple(as_tools([read_turn(turn) for turn in fields.objects(name, MAX_MESSAGES)]))


def read_turn(fields: Fields) -> Message:
    """Read a message by the names that chats have for its members. Its role may be in capitals, its text be absent."""
    data, role = dict(fields.data), fields.text("role")
    for name, meant in MEMBERS.items():
        if (text := fields.text(name)) is not None:
            data[meant] = text
        data.pop(name, None)
    if data.pop("images", None):
        raise fields.wrong("images", SIGHT, "unsupported_parameter")
    data |= {"role": role and role.lower(), "content": data.get("content") or ""}
    return read_message(Fields(data, fields.path, fields.vocab_size, fields.ignored))


def read_format(fields: Fields, name: str) -> OutputStructure | None:
    """Read the form of the answer: nothing, any JSON object, or a JSON schema."""
    form = fields.take(name)
    if form == "":
        return None
    if form == JSON:
        return written(fields, name, bounded_object(), grammar_of_schema)
    if not isinstance(form, dict):
        raise fields.unfit(name, form, '"json" or a JSON schema')
    return schema_structure(fields, name, form)


def read_think(fields: Fields, name: str) -> bool | str:
    value = fields.take(name)
    if not isinstance(value, bool) and value not in LEVELS:
        raise fields.unfit(name, value, f"true, false or one of {', '.join(LEVELS)}")
    return bool(value) if isinstance(value, bool) else str(value)


def read_time(fields: Fields, name: str) -> str | float:
    value: str | float = fields.take(name)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise fields.typed(name, value, "a number of seconds or a text such as 5m")
    return value


TIME = ShapedType(read_time, {"title": "seconds, or a text such as `5m`", "type": ["number", "string"]})
KEEP_ALIVE = Parameter("keep_alive", InertType(TIME, None), "how long the model stays, which is as long as the server")
MODEL = Parameter("model", TextType(), "the name of the model that is served, with `:latest` or without", required=True)
OPTIONS = Parameter("options", OPTIONS_TYPE, "sampling parameters, listed below")
FORM = {"title": '`"json"` or a JSON schema', "anyOf": [{"enum": ["", JSON]}, {"type": "object"}]}
THINK = {"title": f"true, false or a level: {', '.join(LEVELS)}", "enum": [True, False, *LEVELS]}
COMMON = (
    Parameter("stream", FlagType(), "send the answer in lines while it is made", True),
    Parameter("format", ShapedType(read_format, FORM), "what the answer has to be"),
    OPTIONS,
    Parameter(
        "think", ShapedType(read_think, THINK), "have a model that can do so reason; absent: as it does by itself"
    ),
    Parameter("logprobs", FlagType(), "show the logprobs of the answer's tokens", False),
    parameter("logprobs", "top_logprobs", "and of so many of the likeliest"),
    KEEP_ALIVE,
    Parameter("truncate", InertType(FlagType(), None), "cut what is too long: it is refused"),
    Parameter("shift", InertType(FlagType(), None), "cut the beginning where an answer would not fit"),
)


def table_of(*declared: Parameter) -> tuple[Parameter, ...]:
    names = {one.name for one in declared}
    return (*declared, *(one for one in UNSUPPORTED if one.name not in names))


CHAT = table_of(
    MODEL,
    Parameter(
        "messages",
        ShapedType(read_turns, {name: value for name, value in MESSAGES_SCHEMA.items() if name != "minItems"}),
        "the turns; none: nothing is answered",
        (),
    ),
    TOOL_LIST,
    *COMMON,
)
GENERATE = table_of(
    MODEL,
    Parameter("prompt", TextType(), "the user's turn, or with `raw` the text; none: nothing is answered", ""),
    Parameter("system", TextType(), "a system message before it", ""),
    Parameter("raw", FlagType(), "continue the prompt as it stands, without the chat template", False),
    *COMMON,
    Parameter("suffix", NeutralType(("",)), "text after the answer"),
    Parameter("template", NeutralType(("",)), "a template of the request's own"),
    Parameter("context", NeutralType(([],), "is not kept here: send the turns to /api/chat"), "earlier turns as ids"),
    Parameter("images", NeutralType(([],), SIGHT), "images"),
    *(Parameter(name, NeutralType((0,)), "of images that are made") for name in ("width", "height", "steps")),
)
CHAT_TABLE, GENERATE_TABLE = ParameterTable(CHAT), ParameterTable(GENERATE)
