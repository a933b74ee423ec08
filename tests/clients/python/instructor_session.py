# SPDX-License-Identifier: Apache-2.0
"""A session with instructor, which makes objects: in a stream too, and by each of its ways to ask for them."""

import json
from typing import Any

import instructor
import openai
from client_session import BASE_URL, ENDLESS, LIMIT, MODEL, QUESTION, Person, refused, run
from instructor.core import IncompleteOutputException
from pydantic import BaseModel, ConfigDict

MODES = (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA)


class Anything(BaseModel):
    """Any object: in its mode `JSON` the client asks for `json_object`, and only the prompt knows the properties. A
    model of random weights follows no prompt."""

    model_config = ConfigDict(extra="allow")


def client(mode: instructor.Mode) -> Any:
    return instructor.from_openai(
        openai.OpenAI(base_url=BASE_URL, api_key="unused", max_retries=0, timeout=LIMIT), mode=mode
    )


def make(mode: instructor.Mode = MODES[0], **more: Any) -> Any:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 100}
    return client(mode).chat.completions.create(**{"response_model": Person, "max_retries": 0} | asked | more)


def structured() -> dict[str, Any]:
    first, second = (make(mode).model_dump() for mode in MODES)
    pieces = list(make(response_model=instructor.Partial[Person], stream=True))
    return {"value": first, "others": [second, pieces[-1].model_dump()]}


def json_object() -> dict[str, Any]:
    """An object that was closed at its budget has the finish reason "length", which the client refuses with the whole
    answer."""
    try:
        return {"is_object": isinstance(make(instructor.Mode.JSON, response_model=Anything), Anything)}
    except IncompleteOutputException as error:
        (choice,) = error.last_completion.choices
        return {"is_object": isinstance(json.loads(choice.message.content), dict), "finish": choice.finish_reason}


def errors() -> dict[str, Any]:
    return {
        "model": refused(lambda: make(model="nobody")),
        "context": refused(lambda: make(messages=[{"role": "user", "content": ENDLESS}])),
        "value": refused(lambda: make(temperature=9)),
    }


run(structured, json_object, errors)
