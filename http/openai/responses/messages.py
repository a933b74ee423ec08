# SPDX-License-Identifier: Apache-2.0
"""Conversion of a conversation's items to the messages that a chat template takes. Pure."""

from collections.abc import Iterable, Sequence

from pontil.http.openai.chat.prompt import Message, arguments_object
from pontil.http.openai.responses.input_items import CALL, MESSAGE, OUTPUT, REASONING, Item

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
    if kind == OUTPUT:
        messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
    elif kind == REASONING:
        if thought := joined(item["content"]) or joined(item["summary"]):
            assistant(messages, "reasoning_content", "content", "tool_calls")["reasoning_content"] = thought
    elif kind == CALL:
        function = {"name": item["name"], "arguments": arguments_object(item["arguments"])}
        calls = assistant(messages).setdefault("tool_calls", [])
        calls.append({"id": item["call_id"], "type": "function", "function": function})
    else:
        assert kind == MESSAGE, "references are resolved by now"
        add_text(messages, item["role"], joined(item["content"]))


def add_text(messages: list[Message], role: str, text: str) -> None:
    if role == "assistant":
        assistant(messages, "content", "tool_calls")["content"] = text
    else:
        messages.append({"role": role, "content": text})


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
