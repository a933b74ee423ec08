# SPDX-License-Identifier: Apache-2.0
"""Images in responses and messages that are refused: each in a sentence that names its place."""

from typing import Any

import pytest
from scripted_site import ScriptedSite

PNG = "iVBORw0KGgo="
URL = f"data:image/png;base64,{PNG}"
CALL = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]}


def response(role: str = "user", **fields: Any) -> dict[str, Any]:
    return {"input": [{"role": role, "content": [{"type": "input_image", **fields}]}]}


def message(role: str = "user", **source: Any) -> dict[str, Any]:
    block = {"type": "image", **({"source": source} if source else {})}
    return {"messages": [{"role": role, "content": [block]}], "max_tokens": 4}


@pytest.mark.parametrize(
    ("asked", "place", "says"),
    [
        (response(), "image_url", "is missing"),
        (response(image_url="https://example.com/a.png"), "image_url", "this server fetches nothing"),
        (response(image_url="data:image/gif;base64,R0lGODlh"), "image_url", "is no PNG or JPEG file"),
        (response(image_url="data:image/png;base64,a"), "image_url", "must be base64"),
        (response(image_url={"url": URL}), "image_url", "must be a string"),
        (response(image_url=URL, detail="high"), "detail", "not supported"),
        (response(file_id="file-1"), "file_id", "this server keeps none"),
        (response("assistant", image_url=URL), "type", "not read here"),
        (response(image_url=URL), "image_url", "sees none"),
    ],
)  # fmt: skip
def test_what_a_response_may_not_show(pair: ScriptedSite, asked: dict[str, Any], place: str, says: str) -> None:
    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        answer = pair.ask("POST", path, asked)
        assert answer.status == 400, answer.body
        error = answer.json["error"]
        assert error["param"] == f"input[0].content[0].{place}" and says in error["message"], error


def test_a_result_of_a_tool_may_show_what_the_user_may(pair: ScriptedSite) -> None:
    """Both are read: the model is what sees none."""
    output = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": URL}]}
    error = pair.ask("POST", "/v1/responses", {"input": [CALL, output]}).json["error"]
    assert error["param"] == "input[1].output[0].image_url" and "sees none" in error["message"], error
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [block]}]}
    answer = pair.ask("POST", "/v1/messages", {"messages": [USE, result], "max_tokens": 4})
    assert answer.status == 400
    assert answer.json["error"]["message"].startswith("messages[1].content[0].content[0].source.data is an image")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (message(), ".source is missing: give"),
        (message(type="file", file_id="f"), ".source.type"),
        (message(type="base64"), ".source.data"),
        (message(type="base64", data="a"), ".source.data must be base64"),
        (message(type="base64", media_type="image/gif", data="R0lGODlh"), ".source.data is no PNG or JPEG file"),
        (message(type="url", url="http://10.0.0.1/a.png"), ".source.url is an address on the network"),
        (message("assistant", type="base64", data=PNG), ".type is 'image', which is not read here"),
        (message(type="base64", data=PNG), ".source.data is an image, and the model 'tiny' sees none"),
        (message(type="url", url=URL), ".source.url is an image, and the model 'tiny' sees none"),
    ],
)  # fmt: skip
def test_what_a_message_may_not_show(pair: ScriptedSite, asked: dict[str, Any], says: str) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        answer = pair.ask("POST", path, asked)
        assert answer.status == 400, answer.body
        assert f"messages[0].content[0]{says}" in answer.json["error"]["message"], answer.body
