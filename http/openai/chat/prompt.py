# SPDX-License-Identifier: Apache-2.0
"""The input of a chat template: messages, tools and variables, read from a request. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pontil.http.fields.picture import IMAGE_URL, read_picture
from pontil.http.fields.recording import INPUT_AUDIO, MediaPart, MixedContent, read_recording
from pontil.http.fields.tools import TOOLS, ToolFields, read_function, tool_fields
from pontil.http.openai.chat.function_messages import FUNCTION_CALL, ROLE, as_tools
from pontil.http.schema.json_body import parse
from pontil.http.schema.message_schema import (
    DOCUMENTS_SCHEMA,
    MAX_MESSAGES,
    MAX_TOOLS,
    MESSAGES_SCHEMA,
    ROLE_NAME,
    ROLES,
    VARIABLES_SCHEMA,
)
from pontil.http.schema.parameter import Parameter
from pontil.http.schema.parameter_types import FlagType, NeutralType, ShapedType, TextType
from pontil.http.schema.reader import Fields, IgnoredFields

# Members of messages that would change the prompt, with the values of them that ask for nothing.
NEUTRAL_MESSAGE: dict[str, tuple[Any, ...]] = {"images": ([],)}
# Members without effect: the values with which a strict server takes them too.
INERT_MESSAGE: dict[str, tuple[Any, ...]] = {"refusal": ("",), "annotations": ([],)}
MAX_OPTION = 64
MAX_MEDIA = 16
# Each is tried with the template.
MAX_OWN_ROLES = 8
RESERVED = (
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize",
    "range", "raise_exception", "strftime_now",
)  # fmt: skip

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Input of the template, as JSON values. A message may lack `content` where it has `tool_calls`, whose arguments
    are objects. `options` are those of TEMPLATE_OPTIONS that were given; a template that does not read one of them, or
    one of the `variables`, makes it `ignored`. `places` are the paths of options that have another name in the
    request. The time that the template may tell is `at` this second, else that of now."""

    messages: tuple[Message, ...]
    tools: ToolFields
    documents: tuple[dict[str, Any], ...]
    variables: Mapping[str, Any]
    add_generation_prompt: bool
    continue_final_message: bool
    options: Mapping[str, str] = field(default_factory=dict)
    ignored: IgnoredFields = field(default_factory=IgnoredFields, compare=False)
    places: Mapping[str, str] = field(default_factory=dict, compare=False)
    at: int | None = None

    @property
    def about_tools(self) -> bool:
        """True if the template has to know tools."""
        return bool(self.tools.shown) or any(
            "tool_calls" in message or message["role"] == "tool" for message in self.messages
        )

    @property
    def continued(self) -> str:
        """The content of the last message, if the answer has the same role; else nothing."""
        last = self.messages[-1]
        same = not self.add_generation_prompt or last["role"] == "assistant"
        return str(last.get("content", "")) if same else ""

    @property
    def media(self) -> tuple[MediaPart, ...]:
        """The recordings and images in messages, which have to become text before the prompt is rendered."""
        contents = (message.get("content") for message in self.messages)
        return tuple(medium for content in contents if isinstance(content, MixedContent) for medium in content.media)

    def heard(self, texts: Mapping[MediaPart, str]) -> "ChatPrompt":
        """Return the prompt with each recording and image replaced by the text that stands for it."""
        return replace(self, messages=tuple(heard_message(message, texts) for message in self.messages))

    @property
    def own_roles(self) -> set[str]:
        """Roles that not every template knows."""
        return {message["role"] for message in self.messages} - set(ROLES)

    @property
    def characters(self) -> int:
        """Number of characters in the messages' contents, with one for each recording and image."""
        return sum(len(message.get("content", "")) for message in self.messages)


def heard_message(message: Message, texts: Mapping[MediaPart, str]) -> Message:
    content = message.get("content")
    return message | {"content": content.heard(texts)} if isinstance(content, MixedContent) else message


def chat_prompt(fields: Fields, values: Mapping[str, Any], places: Mapping[str, str] | None = None) -> ChatPrompt:
    """Build the prompt from the values of CHAT_PROMPT. Raises RequestError, naming the parameter."""
    places = places or {}
    messages, continue_final_message = values["messages"], values["continue_final_message"]
    add_generation_prompt = values["add_generation_prompt"]
    if add_generation_prompt is None:
        add_generation_prompt = not continue_final_message
    if continue_final_message and add_generation_prompt:
        raise fields.wrong("continue_final_message", "contradicts add_generation_prompt: set one of them")
    custom_roles = {message["role"] for message in messages} - set(ROLES)
    if len(custom_roles) > MAX_OWN_ROLES:
        raise fields.wrong(
            "messages", f"hold {len(custom_roles)} roles besides {', '.join(ROLES)}: at most {MAX_OWN_ROLES} may be"
        )
    if continue_final_message and "content" not in messages[-1]:
        raise fields.wrong("continue_final_message", "needs a last message with content")
    tools = tool_fields(fields, values)
    variables: Mapping[str, Any] = values["chat_template_kwargs"]
    template_options = {
        template_option.name: values[template_option.name]
        for template_option in TEMPLATE_OPTIONS
        if values[template_option.name]
    }
    for name in template_options.keys() & variables.keys():
        fields.ignored.note(places.get(name, name))
    options = {name: value for name, value in template_options.items() if name not in variables}
    documents, ignored_fields = values["documents"], fields.ignored
    return ChatPrompt(
        messages,
        tools,
        documents,
        variables,
        add_generation_prompt,
        continue_final_message,
        options,
        ignored_fields,
        places,
    )


def read_messages(fields: Fields, name: str) -> tuple[Message, ...]:
    return messages_of(fields, name, fields.take(name))


def messages_of(fields: Fields, name: str, value: Any) -> tuple[Message, ...]:
    """Return the messages of this value, which errors call by this name."""
    if not isinstance(value, list):
        raise fields.typed(name, value, "a list of messages")
    if not value:
        raise fields.wrong(name, "is empty: give at least one")
    if len(value) > MAX_MESSAGES:
        raise fields.wrong(name, f"may hold at most {MAX_MESSAGES} items")
    messages = [read_message(fields.item(item, f"{name}[{index}]")) for index, item in enumerate(value)]
    return tuple(as_tools(messages))


def read_message(fields: Fields) -> Message:
    role = fields.text("role")
    if role is None or not re.fullmatch(ROLE_NAME, role):
        other_roles = "or another one of at most 64 letters, digits and _.- that the model's chat template knows"
        raise fields.unfit("role", role, f"{', '.join(ROLES)}, {other_roles}")
    message: Message = {"role": role}
    calls = [read_tool_call(call) for call in fields.objects("tool_calls", MAX_TOOLS)]
    function = read_function_call(fields, calls)
    if (calls or function) and role != "assistant":
        raise fields.wrong("tool_calls" if calls else FUNCTION_CALL, "is for messages of the assistant: leave it out")
    if fields.data.get("content") is not None or role != "assistant":
        message["content"] = read_content(fields, role)
    elif not (calls or function):
        # An assistant message whose reasoning was cut off has no content.
        message["content"] = ""
    if calls:
        message["tool_calls"] = calls
    if function:
        message[FUNCTION_CALL] = function
    read_texts(fields, role, message)
    fields.take("content")
    fields.neutral(NEUTRAL_MESSAGE)
    if fields.take("audio") is not None:
        says = "is not kept here: send its transcript as content, and leave it out"
        raise fields.wrong("audio", says, "unsupported_parameter")
    if fields.ignored.strict:
        fields.neutral(INERT_MESSAGE)
    fields.ignore_rest()
    return message


def read_function_call(fields: Fields, calls: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return a call in its older form, which is the only one of its message."""
    function_fields = fields.object(FUNCTION_CALL)
    if function_fields is None:
        return None
    if calls:
        raise fields.wrong(FUNCTION_CALL, "is the older form of tool_calls: leave out one of the two")
    function = {"name": function_fields.required_text("name"), "arguments": arguments(function_fields)}
    function_fields.ignore_rest()
    return function


def read_texts(fields: Fields, role: str, message: Message) -> None:
    """Add a message's other texts, empty ones excepted."""
    names = {"assistant": ("name", "reasoning_content", "reasoning"), "tool": ("name", "tool_call_id")}
    for name in names.get(role, ("name",)):
        if text := fields.text(name):
            message[name] = text
    if role == ROLE and "name" not in message:
        raise fields.wrong("name", "is missing: give the name of the function whose result this is")


def read_content(fields: Fields, role: str) -> str | MixedContent:
    """Return a string: text parts are joined. Recordings and images stay apart, until they are read."""
    value = fields.take("content")
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise fields.typed("content", value, "a string or a list of text parts")
    parts = [read_part(fields.item(item, f"content[{index}]"), role) for index, item in enumerate(value)]
    media = sum(not isinstance(part, str) for part in parts)
    if not media:
        return "".join(part for part in parts if isinstance(part, str))
    if media > MAX_MEDIA:
        raise fields.wrong("content", f"holds {media} recordings and images: at most {MAX_MEDIA} may be in a message")
    return MixedContent(tuple(parts))


def read_part(fields: Fields, role: str) -> str | MediaPart:
    kind = fields.take("type")
    if kind in (INPUT_AUDIO, IMAGE_URL):
        if role != "user":
            raise fields.wrong("type", f"is {kind}, which is for messages of the user: send text")
        return read_recording(fields) if kind == INPUT_AUDIO else read_picture(fields)
    if kind != "text":
        says = '"text", or "input_audio" or "image_url" where the model hears or sees'
        raise fields.unfit("type", kind, says, "unsupported_parameter")
    text = fields.required_text("text")
    fields.ignore_rest()
    return text


def read_tool_call(fields: Fields) -> dict[str, Any]:
    identity, function_fields = fields.text("id"), read_function(fields)
    function = {"name": function_fields.required_text("name"), "arguments": arguments(function_fields)}
    function_fields.ignore_rest()
    fields.neutral({"index": tuple(range(MAX_TOOLS))})
    fields.ignore_rest()
    call = {"type": "function", "function": function}
    return call if identity is None else {"id": identity} | call


def arguments(fields: Fields) -> dict[str, Any]:
    """Return the arguments as an object. Clients send them as JSON in a string; templates expect the object, as
    transformers' users provide it."""
    value = fields.take("arguments")
    if isinstance(value, str):
        value = arguments_value(value)
    if value is not None and not isinstance(value, dict):
        raise fields.typed("arguments", value, "an object")
    return value or {}


def arguments_value(text: str) -> Any:
    """Return the JSON value of this text. Truncated JSON of an output that was cut off counts as no arguments."""
    try:
        return parse((text or "{}").encode())
    except (ValueError, RecursionError):
        return {}


def arguments_object(text: str) -> dict[str, Any]:
    """Return the arguments of a call that was made once, none where they are no object."""
    value = arguments_value(text)
    return value if isinstance(value, dict) else {}


def read_documents(fields: Fields, name: str) -> tuple[dict[str, Any], ...]:
    return tuple(dict(document.data) for document in fields.objects(name, MAX_TOOLS))


def read_variables(fields: Fields, name: str) -> Mapping[str, Any]:
    variables = fields.required_object(name)
    for variable in variables.data:
        if variable in RESERVED:
            raise variables.wrong(variable, "is not for the request to set here: leave it out")
    return variables.data


TEMPLATE_OPTIONS = (
    Parameter("reasoning_effort", TextType(0, MAX_OPTION), "a variable of the template, where it reads it"),
    Parameter("verbosity", TextType(0, MAX_OPTION), "a variable of the template, where it reads it"),
)
CHAT_PROMPT = (
    Parameter("messages", ShapedType(read_messages, MESSAGES_SCHEMA), "at least one message", required=True),
    *TOOLS,
    Parameter("documents", ShapedType(read_documents, DOCUMENTS_SCHEMA), "for templates that know documents", ()),
    Parameter(
        "chat_template_kwargs", ShapedType(read_variables, VARIABLES_SCHEMA), "more variables of the template", {}
    ),
    *TEMPLATE_OPTIONS,
    Parameter("chat_template", NeutralType(), "a template of the request's own"),
    Parameter(
        "add_generation_prompt", FlagType(), "end the prompt where the assistant begins; absent: unless the next"
    ),
    Parameter("continue_final_message", FlagType(), "go on with the last message", False),
)
