# SPDX-License-Identifier: Apache-2.0
"""A session with Ollama's client."""

from typing import Any

import ollama
from client_session import (
    BASE_URL,
    ENDLESS,
    GET_TIME,
    LIMIT,
    MODEL,
    QUESTION,
    RESULT,
    TIME,
    TOKENS,
    Person,
    refused,
    run,
)

client = ollama.Client(host=BASE_URL.removesuffix("/v1"), timeout=LIMIT)
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
# A name without a tag means the tag "latest".
NAME = f"{MODEL}:latest"


def create(num_predict: int = TOKENS, temperature: float = 0, tool_choice: object = None, **more: Any) -> Any:
    options = {"temperature": temperature, "num_predict": num_predict, "tool_choice": tool_choice}
    return client.chat(**{"model": NAME, "messages": MESSAGES, "options": options} | more)


def shown(answer: Any) -> dict[str, Any]:
    counts = {"prompt": answer.prompt_eval_count, "completion": answer.eval_count}
    return {"text": answer.message.content, "finish": answer.done_reason, **counts}


def chat() -> dict[str, Any]:
    return shown(create())


def stream() -> dict[str, Any]:
    parts = list(create(stream=True))
    pieces = [part.message.content for part in parts if part.message.content]
    return {**shown(parts[-1]), "text": "".join(pieces), "pieces": len(pieces)}


def tools() -> dict[str, Any]:
    message = create(tools=[TIME], tool_choice=GET_TIME, num_predict=100).message
    (call,) = message.tool_calls
    result = {"role": "tool", "tool_name": call.function.name, "content": RESULT}
    second = create(tools=[TIME], messages=[*MESSAGES, message, result])
    return {"name": call.function.name, "arguments": call.function.arguments, "answer": shown(second)["text"]}


def structured() -> dict[str, Any]:
    answer = create(num_predict=100, format=Person.model_json_schema())
    return {"value": Person.model_validate_json(answer.message.content).model_dump()}


def errors() -> dict[str, Any]:
    return {
        "model": refused(lambda: create(model="nobody")),
        "context": refused(lambda: create(messages=[{"role": "user", "content": ENDLESS}])),
        "value": refused(lambda: create(temperature=9)),
    }


def cancel() -> dict[str, Any]:
    parts = create(stream=True, num_predict=1900)
    next(part for part in parts if part.message.content)
    parts.close()
    return {"ended": True}


run(chat, stream, tools, structured, errors, cancel)
