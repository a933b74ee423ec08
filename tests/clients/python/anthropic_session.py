# SPDX-License-Identifier: Apache-2.0
"""A session with Anthropic's client."""

from typing import Any

import anthropic
from client_session import BASE_URL, CITY, ENDLESS, LIMIT, MODEL, QUESTION, RESULT, TOKENS, Person, refused, run

client = anthropic.Anthropic(base_url=BASE_URL.removesuffix("/v1"), api_key="unused", max_retries=0, timeout=LIMIT)
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
# The client has no parameter for a temperature any more.
GREEDY = {"temperature": 0}
ASKED: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": TOKENS, "extra_body": GREEDY}
TIME: dict[str, Any] = {"name": "get_time", "description": "The time in a city", "input_schema": CITY}


def create(**more: Any) -> Any:
    return client.messages.create(**ASKED | more)


def shown(message: Any) -> dict[str, Any]:
    """Return the facts of a message, whose reason has another name at OpenAI."""
    finish = {"end_turn": "stop", "max_tokens": "length"}.get(message.stop_reason, message.stop_reason)
    text = "".join(block.text for block in message.content if block.type == "text")
    usage = message.usage
    prompt = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    return {"text": text, "finish": finish, "prompt": prompt, "completion": usage.output_tokens}


def chat() -> dict[str, Any]:
    facts = shown(create())
    counted = client.messages.count_tokens(model=MODEL, messages=MESSAGES)
    return facts if counted.input_tokens == facts["prompt"] else {"failed": f"{counted} for {facts}"}


def stream() -> dict[str, Any]:
    with client.messages.stream(**ASKED) as made:
        pieces = list(made.text_stream)
        facts = shown(made.get_final_message())
    return {**facts, "text": "".join(pieces), "pieces": len(pieces)}


def tools() -> dict[str, Any]:
    message = create(tools=[TIME], tool_choice={"type": "tool", "name": "get_time"}, max_tokens=100)
    (call,) = (block for block in message.content if block.type == "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": RESULT}
    sent_back = [*MESSAGES, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    second = create(tools=[TIME], tool_choice={"type": "auto"}, messages=sent_back)
    return {"name": call.name, "arguments": call.input, "answer": shown(second)["text"]}


def structured() -> dict[str, Any]:
    """Send the whole schema: the client's own helper leaves bounds of numbers to the reader."""
    form = {"type": "json_schema", "schema": Person.model_json_schema()}
    message = create(max_tokens=100, output_config={"format": form})
    return {"value": Person.model_validate_json(shown(message)["text"]).model_dump()}


def errors() -> dict[str, Any]:
    return {
        "model": refused(lambda: create(model="nobody")),
        "context": refused(lambda: create(messages=[{"role": "user", "content": ENDLESS}])),
        "value": refused(lambda: create(extra_body={"temperature": 9})),
    }


def cancel() -> dict[str, Any]:
    with create(stream=True, max_tokens=1900) as events:
        next(event for event in events if event.type == "content_block_delta")
    return {"ended": events.response.is_closed}


run(chat, stream, tools, structured, errors, cancel)
