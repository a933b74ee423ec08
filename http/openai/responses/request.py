# SPDX-License-Identifier: Apache-2.0
"""Parser of /v1/responses: from JSON to the request of a chat, and what is about the response alone. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pontil.http.fields.client_fields import UNSUPPORTED
from pontil.http.fields.delivery import STREAM_OPTIONS, Delivery
from pontil.http.fields.kv_transfer import KV_TRANSFER
from pontil.http.fields.picture import LinkedPicture, Picture, linked_picture
from pontil.http.fields.prompt import PROMPT, prompt_fields, special_tokens
from pontil.http.fields.recording import MixedContent
from pontil.http.fields.sampling import SAMPLING, THINKING_BUDGET, LogprobFields, parameter, sampling_fields
from pontil.http.openai.chat.kept_beginning import RETENTION, retained
from pontil.http.openai.chat.prompt import CHAT_PROMPT, MAX_OPTION, Message, arguments_object, chat_prompt
from pontil.http.openai.chat.request import CHAT_DEFAULTS, ChatRequest
from pontil.http.openai.responses.input_items import (
    CALL,
    CUSTOM_CALL,
    CUSTOM_OUTPUT,
    GIVE,
    IMAGE,
    MESSAGE,
    OUTPUT,
    REASONING,
    ImagePart,
    Item,
    characters_of,
    input_schema,
    read_input,
)
from pontil.http.openai.responses.tools import FUNCTIONS, INPUT, SentTools, ToolOrigin, function_named
from pontil.http.schema.json_body import kind_of
from pontil.http.schema.parameter import Parameter, ParameterTable, Schema
from pontil.http.schema.parameter_types import (
    FlagType,
    InertType,
    IntegerType,
    NeutralType,
    OptionsType,
    ShapedType,
    TextType,
)
from pontil.http.schema.reader import Fields, IgnoredFields
from pontil.runtime.errors import RequestError

SYSTEM = ("system", "developer")


def messages_of(instructions: str | None, items: Iterable[Item]) -> tuple[Message, ...]:
    """Return the messages. `instructions` come first, in one message with those that the items begin with, since many
    templates take a single system message. What the assistant reasoned, said and called in one go is one message."""
    role, texts = "system", [] if instructions is None else [instructions]
    messages: list[Message] = []
    for item in items:
        if not messages and item["type"] == MESSAGE and item["role"] in SYSTEM:
            role = role if texts else item["role"]
            texts.append(joined(item["content"]))
        else:
            add(messages, item)
    # Joined once: a text that grew by each of many items would be copied as often.
    first: list[Message] = [{"role": role, "content": "\n\n".join(texts)}] if texts else []
    return (*first, *(message if message["role"] != "assistant" else complete(message) for message in messages))


def add(messages: list[Message], item: Item) -> None:
    kind = item["type"]
    if kind in (OUTPUT, CUSTOM_OUTPUT):
        messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content_of(item["output"])})
    elif kind == REASONING:
        if thought := joined(item["content"]) or joined(item["summary"]):
            assistant(messages, "reasoning_content", "content", "tool_calls")["reasoning_content"] = thought
    elif kind in (CALL, CUSTOM_CALL):
        arguments = {INPUT: item["input"]} if kind == CUSTOM_CALL else arguments_object(item["arguments"])
        function = {"name": function_named(item["name"], item.get("namespace")), "arguments": arguments}
        calls = assistant(messages).setdefault("tool_calls", [])
        calls.append({"id": item["call_id"], "type": "function", "function": function})
    else:
        assert kind == MESSAGE, "references are resolved by now"
        add_content(messages, item["role"], content_of(item["content"]))


def add_content(messages: list[Message], role: str, content: str | MixedContent) -> None:
    if role == "assistant":
        assistant(messages, "content", "tool_calls")["content"] = content
    else:
        messages.append({"role": role, "content": content})


def content_of(parts: str | Sequence[Item]) -> str | MixedContent:
    """Return a text, or the texts and images of parts that hold any image."""
    if isinstance(parts, str):
        return parts
    if all(part.get("type") != IMAGE for part in parts):
        return joined(parts)
    return MixedContent(tuple(picture_of(part) if part["type"] == IMAGE else part["text"] for part in parts))


def picture_of(part: Item) -> Picture | LinkedPicture:
    """Return the image of a part of this request, or of one that a kept response answers."""
    if isinstance(part, ImagePart):
        return part.picture
    return replace(linked_picture(Fields(part), "image_url", GIVE), place="previous_response_id")


def assistant(messages: list[Message], *without: str) -> Message:
    """Return the assistant's message that is open: the last one, if it has none of these fields; else a new one."""
    if not messages or messages[-1]["role"] != "assistant" or any(name in messages[-1] for name in without):
        messages.append({"role": "assistant"})
    return messages[-1]


def complete(message: Message) -> Message:
    """Return an assistant's message with content, which only one with calls may lack."""
    return message if "content" in message or "tool_calls" in message else message | {"content": ""}


def joined(parts: Sequence[Item]) -> str:
    return "".join(part.get("text", "") for part in parts)


CHATS = "leave it out, or use /v1/chat/completions"
MAX_METADATA = 16
# More items or characters are worked on in a thread.
MANY_ITEMS, LONG_INPUT = 256, 20_000
MAX_SHORT_CHARACTERS = 512
# A response repeats its tools in each of its first and last events.
MOST_ECHOED = 1 << 20
MAX_KEY_CHARACTERS, MAX_VALUE_CHARACTERS = 64, 512
LOGPROBS = "message.output_text.logprobs"
# Parameters of chats and completions that a response has not: what to do instead, and the values that ask for nothing.
ELSEWHERE: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "messages": ("send input", ()),
    "response_format": ("use text.format", ()),
    "reasoning_effort": ("use reasoning.effort", ()),
    "verbosity": ("use text.verbosity", ()),
    "max_tokens": ("use max_output_tokens", ()),
    "max_completion_tokens": ("use max_output_tokens", ()),
    "logprobs": ("use top_logprobs", (False,)),
    "n": (CHATS, (1,)),
    "best_of": (CHATS, (1,)),
    "prompt_logprobs": (CHATS, ()),
    "logprob_token_ids": (CHATS, ([],)),
    "truncate_prompt_tokens": (CHATS, ()),
    "add_generation_prompt": (CHATS, (True,)),
    "continue_final_message": (CHATS, (False,)),
    "include_reasoning": (CHATS, (True,)),
    "return_token_ids": (CHATS, (False,)),
}
# Names of a template's variables in a chat, with their paths in a response.
PLACES = {"reasoning_effort": "reasoning.effort", "verbosity": "text.verbosity"}
# Values that a response shows as they were sent, with those that are shown otherwise.
ECHOED: Mapping[str, Any] = {
    "instructions": None, "max_output_tokens": None, "max_tool_calls": None, "parallel_tool_calls": True,
    "previous_response_id": None, "prompt_cache_key": None, "safety_identifier": None, "temperature": 1.0,
    "tool_choice": "auto", "top_p": 1.0, "truncation": "disabled", "user": None,
    "presence_penalty": 0.0, "frequency_penalty": 0.0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """A request for a response. `chat` is the same as a chat, without messages: `with_history` adds them. `items` are
    the request's own input; they go behind those of the `previous` response. `echoed` are the fields that the response
    shows, `origins` the tools by their functions' names."""

    chat: ChatRequest
    instructions: str | None
    items: tuple[Item, ...]
    previous: str | None
    store: bool
    echoed: dict[str, Any]
    origins: Mapping[str, ToolOrigin]

    @property
    def characters(self) -> int:
        """About the number of characters of the input."""
        return sum(map(characters_of, self.items))

    @property
    def is_long(self) -> bool:
        """True if work on the items is not for the event loop."""
        return len(self.items) > MANY_ITEMS or self.characters > LONG_INPUT

    def with_history(self, items: Iterable[Item]) -> ChatRequest:
        """Return the chat with the messages of these items, which include the request's own. Raises RequestError if
        there are none."""
        messages = messages_of(self.instructions, items)
        if not messages:
            raise RequestError("input is empty: give at least one item", param="input")
        return replace(self.chat, prompt=replace(self.chat.prompt, messages=messages))


def read_responses(data: Mapping[str, Any], vocab_size: int, ignored: IgnoredFields | None = None) -> ResponsesRequest:
    """Parse the request. Raises RequestError, naming the parameter, for anything invalid."""
    fields = Fields(data, vocab_size=vocab_size, ignored=ignored)
    values = TABLE.read(fields)
    if values["stream_options"] is not None and not values["stream"]:
        raise fields.wrong("stream_options", "is for streams only: leave it out or set stream")
    text, reasoning, tools = values["text"] or {}, values["reasoning"] or {}, values["tools"] or SentTools()
    # Those that a response has not are absent.
    chat_values = {**CHAT_DEFAULTS} | {name: value for name, value in values.items() if name not in ELSEWHERE}
    chat_values |= {"messages": (), "response_format": text.get("format"), "tools": tools.functions}
    chat_values |= {"reasoning_effort": reasoning.get("effort"), "verbosity": text.get("verbosity")}
    prompt = chat_prompt(fields, chat_values, PLACES)
    chat = ChatRequest(
        model=values["model"],
        prompt=replace(prompt, tools=replace(prompt.tools, place="tools[%d].")),
        sampling=sampling_fields(fields, chat_values, ("max_output_tokens",), logprobs_of(values)),
        delivery=Delivery(values["stream"], include_usage=True, continuous_usage=False, token_ids=False),
        handling=prompt_fields(fields, chat_values),
        include_reasoning=True,
        kv_transfer=values["kv_transfer_params"],
        kept=retained(values),
    )
    echo_fields = echoed_fields(data, values, tools)
    check_echoed(echo_fields)
    response_values = (values["instructions"], values["input"], values["previous_response_id"], values["store"])
    return ResponsesRequest(chat, *response_values, echo_fields, tools.origins)


def logprobs_of(values: Mapping[str, Any]) -> LogprobFields:
    top = values["top_logprobs"]
    return LogprobFields(top or 0 if top or LOGPROBS in values["include"] else None, None)


def check_echoed(echo_fields: Mapping[str, Any]) -> None:
    """Refuse fields that would be too long to repeat. They are measured one by one, so that other threads run in
    between."""
    size = 0
    for part in (*echo_fields["tools"], echo_fields["tool_choice"], echo_fields["text"], echo_fields["instructions"]):
        size += len(json.dumps(part))
        if size > MOST_ECHOED:
            says = f"tools, tool_choice, text and instructions have more than {MOST_ECHOED} bytes together"
            says += ", which no response repeats: shorten them, or put long texts into input"
            raise RequestError(says, param="tools")


def echoed_fields(data: Mapping[str, Any], values: Mapping[str, Any], tools: SentTools) -> dict[str, Any]:
    """Return the fields that a response repeats."""
    echo_fields = {name: data.get(name) if data.get(name) is not None else default for name, default in ECHOED.items()}
    text, reasoning = data.get("text") or {}, data.get("reasoning") or {}
    return echo_fields | {
        "metadata": values["metadata"],
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "text": {"format": text.get("format") or {"type": "text"}, "verbosity": text.get("verbosity") or "medium"},
        "tools": list(tools.echoed),
        "top_logprobs": values["top_logprobs"] or 0,
    }


def read_metadata(fields: Fields, name: str) -> dict[str, str]:
    metadata = fields.required_object(name)
    if len(metadata.data) > MAX_METADATA:
        raise fields.wrong(name, f"may hold at most {MAX_METADATA} items")
    for key in metadata.data:
        if len(key) > MAX_KEY_CHARACTERS:
            raise fields.wrong(name, f"has a key of more than {MAX_KEY_CHARACTERS} characters")
        if len(metadata.required_text(key)) > MAX_VALUE_CHARACTERS:
            raise metadata.wrong(key, f"may have at most {MAX_VALUE_CHARACTERS} characters")
    return dict(metadata.data)


METADATA_SCHEMA: Schema = {
    "title": f"an object of at most {MAX_METADATA} short texts",
    "type": "object",
    "maxProperties": MAX_METADATA,
    "propertyNames": {"maxLength": MAX_KEY_CHARACTERS},
    "additionalProperties": {"type": "string", "maxLength": MAX_VALUE_CHARACTERS},
}


def read_include(fields: Fields, name: str) -> tuple[str, ...]:
    """Return what a client wants to see beside the rest. Of that only logprobs exist here."""
    value = fields.take(name)
    if not isinstance(value, list):
        raise fields.typed(name, value, "a list of strings")
    for entry in value:
        if not isinstance(entry, str):
            raise fields.wrong(name, f"must hold strings only, not {kind_of(entry)}")
    if any(entry != LOGPROBS for entry in value):
        if fields.ignored.strict:
            raise fields.wrong(name, f"may hold {LOGPROBS} only: others have no effect", "unsupported_parameter")
        fields.without_effect(name)
    return tuple(value)


INCLUDE_SCHEMA: Schema = {
    "title": "texts, of which `message.output_text.logprobs` has an effect",
    "type": "array",
    "items": {"type": "string"},
}


def read_truncation(fields: Fields, name: str) -> str:
    """Read a mode. With "auto" an input that fits is not truncated; one that does not is refused in either mode."""
    value = fields.text(name)
    if value not in ("auto", "disabled"):
        raise fields.unfit(name, value, "auto or disabled")
    fields.without_effect(name)
    return str(value)


TRUNCATION_SCHEMA: Schema = {"enum": ["auto", "disabled"]}


# Parameters with the effect that they have in a chat.
OWN_FORM = {"messages", "tools", "tool_choice"}
OF_CHATS = tuple(
    chat_parameter
    for chat_parameter in (*SAMPLING, THINKING_BUDGET, *CHAT_PROMPT, special_tokens(False), *PROMPT)
    if chat_parameter.name not in OWN_FORM and chat_parameter.name not in ELSEWHERE
)
OBFUSCATION = tuple(stream_option for stream_option in STREAM_OPTIONS if stream_option.name == "include_obfuscation")
SHORT = TextType(0, MAX_SHORT_CHARACTERS)
# A response repeats some of them, and so they are short.
SENT_BY_CLIENTS = (
    Parameter("user", InertType(SHORT, None), "who the end user is"),
    Parameter("safety_identifier", InertType(SHORT), "who the end user is"),
)
REASONING_OPTIONS = (
    Parameter("effort", TextType(0, MAX_OPTION), "a variable of the template, where it reads it"),
    Parameter("summary", InertType(SHORT), "a summary of the reasoning, which is shown itself"),
    Parameter("generate_summary", InertType(SHORT), "the older name of summary"),
)
DECLARED = (
    Parameter("model", TextType(), "the name of a model that is served; absent: the first one"),
    Parameter("input", ShapedType(read_input, input_schema()), "a text, or items of a conversation", required=True),
    Parameter("instructions", TextType(), "a system message before the input; not carried over to the next response"),
    Parameter("previous_response_id", TextType(), "the response after which the conversation goes on"),
    Parameter("store", FlagType(), "keep the response, so that a later one may go on after it", True),
    Parameter("stream", FlagType(), "send the response as events while it is made", False),
    Parameter("stream_options", OptionsType(OBFUSCATION), "of a stream"),
    Parameter("max_output_tokens", IntegerType(1), "the most tokens of the response; absent: the rest of the context"),
    *FUNCTIONS,
    Parameter("include", ShapedType(read_include, INCLUDE_SCHEMA), "what is shown beside the rest", ()),
    parameter("logprobs", "top_logprobs", "show logprobs, and those of so many others"),
    Parameter("metadata", ShapedType(read_metadata, METADATA_SCHEMA), "kept and shown with the response", {}),
    *OF_CHATS,
    Parameter("truncation", ShapedType(read_truncation, TRUNCATION_SCHEMA), "an input that is too long is refused"),
    Parameter("reasoning", OptionsType(REASONING_OPTIONS), "`effort`, for the template"),
    Parameter("max_tool_calls", InertType(IntegerType(1), None), "of tools at OpenAI, of which none are here"),
    *SENT_BY_CLIENTS,
    RETENTION,
    KV_TRANSFER,
    Parameter("background", NeutralType((False,)), "answer later"),
    Parameter("conversation", NeutralType(others="is not supported: use previous_response_id"), "a kept conversation"),
    Parameter("prompt", NeutralType(), "a kept template of a prompt"),
    Parameter("context_management", NeutralType(([],)), "shorten a long conversation"),
    Parameter("moderation", NeutralType(), "judge input and answer"),
    *(
        Parameter(
            name, NeutralType(allowed_values, f"is no parameter of a response: {instead}"), "of chats and completions"
        )
        for name, (instead, allowed_values) in ELSEWHERE.items()
    ),
)
DECLARED_NAMES = {declaration.name for declaration in DECLARED}
RESPONSES = (*DECLARED, *(declaration for declaration in UNSUPPORTED if declaration.name not in DECLARED_NAMES))
TABLE = ParameterTable(RESPONSES)
