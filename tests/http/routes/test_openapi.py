# SPDX-License-Identifier: Apache-2.0
"""/openapi.json is accurate: every route is in it, and every response matches its schema."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from api_table import words
from sanic import Sanic
from scripted_site import MODEL, HttpAnswer, ScriptedSite

from pontil.http.anthropic.request import MESSAGES
from pontil.http.openai.chat.request import CHAT
from pontil.http.openai.completions.request import COMPLETION
from pontil.http.openai.responses.request import RESPONSES
from pontil.http.schema.parameter import object_schema
from pontil.http.vllm.chat_batch import CHAT_BATCH

GENERATE: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
}
LOGPROBS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"logprobs": 2, "echo": True}, "/v1/chat/completions": {"logprobs": True, "top_logprobs": 2},
}  # fmt: skip
# Options that change the response's schema, and some that do not.
SHAPES: list[dict[str, Any]] = [
    {"max_tokens": 3},
    {"max_tokens": 40, "n": 2, "return_token_ids": True},
    {"max_tokens": 3, "logprobs": "here", "n": 2},
    {"max_tokens": 3, "logprobs": "here", "return_token_ids": True},
]
TWO_CHATS = [[{"role": "user", "content": "hi"}], [{"role": "user", "content": "hello"}]]
ASKED: list[tuple[str, str, Any, int]] = [
    ("GET", "/v1/models", None, 200),
    ("GET", "/v1/models/{name}", None, 200),
    ("GET", "/health", None, 200),
    ("GET", "/ready", None, 200),
    ("GET", "/version", None, 200),
    ("GET", "/ping", None, 200),
    ("GET", "/load", None, 200),
    ("GET", "/tokenizer_info", None, 200),
    ("GET", "/get_model_info", None, 200),
    ("POST", "/v1/chat/completions/render", {"messages": [{"role": "user", "content": "hi"}]}, 200),
    ("POST", "/v1/chat/completions/render", {"messages": [{"role": "user", "content": "x" * 4000}]}, 400),
    ("POST", "/v1/chat/completions/batch", {"messages": TWO_CHATS, "max_tokens": 2}, 200),
    ("POST", "/v1/chat/completions/batch", {"messages": TWO_CHATS, "return_token_ids": True, "max_tokens": 2}, 200),
    ("POST", "/v1/chat/completions/batch", {"messages": TWO_CHATS[0]}, 400),
    ("POST", "/invocations", {"prompt": "hi", "max_tokens": 2}, 200),
    ("POST", "/invocations", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}, 200),
    ("POST", "/invocations", {}, 400),
    ("POST", "/generate", {"text": "hi", "sampling_params": {"max_new_tokens": 2}}, 200),
    ("POST", "/generate", {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 0}}, 400),
    ("GET", "/openapi.json", None, 200),
    ("GET", "/admin/topology", None, 200),
    ("GET", "/admin/ledger", None, 200),
    ("POST", "/tokenize", {"prompt": "héllo", "return_token_strs": True}, 200),
    ("POST", "/tokenize", {"messages": [{"role": "user", "content": "hi"}]}, 200),
    ("POST", "/detokenize", {"tokens": [5, 6]}, 200),
    ("POST", "/v1/completions", {"prompt": "hi", "prompt_logprobs": 1, "max_tokens": 1}, 200),
    ("POST", "/v1/responses", {"input": "hi", "max_output_tokens": 2}, 200),
    ("POST", "/v1/responses", {"input": "hi", "background": True}, 400),
    ("POST", "/v1/responses", {"input": "hi", "previous_response_id": "none"}, 404),
    ("POST", "/v1/responses/input_tokens", {"input": "hi"}, 200),
    ("POST", "/v1/messages", {"messages": TWO_CHATS[0], "max_tokens": 2}, 200),
    ("POST", "/v1/messages", {"messages": TWO_CHATS[0]}, 400),
    ("POST", "/v1/messages", {"messages": TWO_CHATS[0], "max_tokens": 2, "model": "nobody"}, 404),
    ("POST", "/v1/messages/count_tokens", {"messages": TWO_CHATS[0]}, 200),
    ("POST", "/api/chat", {"model": MODEL, "messages": TWO_CHATS[0], "stream": False}, 200),
    ("POST", "/api/chat", {"model": MODEL, "messages": [], "stream": False}, 200),
    ("POST", "/api/chat", {"model": MODEL, "messages": 1}, 400),
    ("POST", "/api/generate", {"model": MODEL, "prompt": "hi", "stream": False}, 200),
    ("POST", "/api/generate", {"prompt": "hi", "model": "nobody"}, 404),
    ("POST", "/api/embed", {"model": MODEL, "input": "hi"}, 404),
    ("POST", "/api/embeddings", {"model": MODEL, "prompt": "hi"}, 404),
    ("GET", "/api/tags", None, 200),
    ("GET", "/api/ps", None, 200),
    ("POST", "/api/show", {"model": MODEL}, 200),
    ("GET", "/api/version", None, 200),
    ("GET", "/v1/responses/{response_id}", None, 404),
    ("DELETE", "/v1/responses/{response_id}", None, 404),
    ("POST", "/v1/responses/{response_id}/cancel", None, 404),
    ("GET", "/v1/responses/{response_id}/input_items", None, 404),
    ("POST", "/v1/embeddings", {"input": "hi"}, 404),
    ("POST", "/v1/audio/speech", {"input": "hi"}, 400),
    ("POST", "/v1/audio/transcriptions", {}, 415),
    ("POST", "/v1/chat/completions", {"messages": TWO_CHATS[0], "modalities": ["text", "audio"]}, 400),
    ("POST", "/v1/completions", {}, 400),
    ("POST", "/v1/chat/completions", {"model": "nobody", "messages": [{"role": "user", "content": "x"}]}, 404),
    ("POST", "/tokenize", {"prompt": "x", "model": "nobody"}, 404),
    ("POST", "/detokenize", {"tokens": "x"}, 400),
]


@pytest.fixture
def document(pair: ScriptedSite) -> dict[str, Any]:
    read: dict[str, Any] = pair.ask("GET", "/openapi.json").json
    return read


def check(document: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    """Validate a value; references are to the document's own components."""
    whole = schema | {"components": document["components"]}
    jsonschema.Draft202012Validator(whole).validate(value)


def schema_of(document: dict[str, Any], method: str, path: str, answer: HttpAnswer) -> dict[str, Any]:
    """Return the document's schema for this response."""
    described = document["paths"][path][method.lower()]["responses"][str(answer.status)]
    content: dict[str, Any] = described["content"][answer.headers["content-type"].partition(";")[0]]
    return content


def test_every_route_is_in_it_and_nothing_else(pair: ScriptedSite, document: dict[str, Any]) -> None:
    app = Sanic.get_app(f"pontil-{pair.proxy.incarnation}")
    routes = {
        (method, "/" + re.sub(r"<(\w+):\w+>", r"{\1}", route.path))
        for route in app.router.routes
        for method in route.methods - {"HEAD", "OPTIONS"}
    }
    described = {(method.upper(), path) for path, operations in document["paths"].items() for method in operations}
    assert routes == described
    assert document["info"]["version"] == "1.2.3"


def test_bodies_are_what_the_parsers_take(pair: ScriptedSite, document: dict[str, Any]) -> None:
    paths = {
        "/v1/completions": COMPLETION, "/v1/chat/completions": CHAT, "/v1/responses": RESPONSES,
        "/v1/messages": MESSAGES, "/v1/chat/completions/batch": CHAT_BATCH,
    }  # fmt: skip
    for path, parameters in paths.items():
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert body == object_schema(parameters, pair.tokenizer.vocab_size)
        assert body.get("additionalProperties", True)
        assert all(words_of(one) for one in body["properties"].values())


def words_of(schema: dict[str, Any]) -> str:
    """Describe a schema in words, which must say something about its values."""
    described = next((one for one in schema.get("anyOf", ()) if one != {"type": "null"}), schema)
    kind = described.get("type")
    return words(
        {**described, "type": kind[0] if isinstance(kind, list) else kind, "title": described.get("title", "x")}
    )


# Keywords whose values are schemas by name, in a list, or one.
NAMED, LISTED, ONE = (
    {"properties", "$defs"},
    {"anyOf", "oneOf", "allOf"},
    {"items", "if", "then", "else", "contentSchema"},
)


def schemas_in(schema: Any) -> Iterator[str]:
    """Yield a schema with `true` in the places of those in it, and so each of these: many are in it many times."""
    if not isinstance(schema, dict):
        return
    own = dict(schema)
    for keyword, value in schema.items():
        inner: list[Any] = []
        if keyword in NAMED:
            own[keyword], inner = dict.fromkeys(value, True), [*value.values()]
        elif keyword in LISTED:
            own[keyword], inner = [True] * len(value), value
        elif keyword in ONE:
            own[keyword], inner = True, [value]
        for one in inner:
            yield from schemas_in(one)
    yield json.dumps(own, sort_keys=True)


def test_schemas_are_schemas(document: dict[str, Any]) -> None:
    found = set[str]()
    for operations in document["paths"].values():
        for operation in operations.values():
            if "requestBody" in operation:
                (body,) = operation["requestBody"]["content"].values()
                found.update(schemas_in(body["schema"]))
            for response in operation["responses"].values():
                for content in response["content"].values():
                    found.update(schemas_in(content.get("schema") or content["itemSchema"]))
    assert len(found) > 100
    for text in found:
        jsonschema.Draft202012Validator.check_schema(json.loads(text))


@pytest.mark.parametrize(("method", "path", "body", "status"), ASKED, ids=lambda value: str(value)[:30])
def test_answers_are_as_it_says(
    pair: ScriptedSite, document: dict[str, Any], method: str, path: str, body: Any, status: int
) -> None:
    answer = pair.ask(method, path.replace("{name}", MODEL), body)
    assert answer.status == status
    check(document, schema_of(document, method, path, answer)["schema"], answer.json)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("path", GENERATE)
def test_generated_answers_are_as_it_says(pair: ScriptedSite, path: str, shape: dict[str, Any]) -> None:
    document = pair.ask("GET", "/openapi.json").json
    asked = {"model": MODEL} | GENERATE[path] | {name: value for name, value in shape.items() if name != "logprobs"}
    asked |= LOGPROBS[path] if "logprobs" in shape else {}
    answer = pair.ask("POST", path, asked)
    assert answer.status == 200, answer.body
    check(document, schema_of(document, "POST", path, answer)["schema"], answer.json)
    for options in ({}, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}):
        streamed = pair.ask("POST", path, asked | {"stream": True, "stream_options": options})
        schema = schema_of(document, "POST", path, streamed)["itemSchema"]["else"]["properties"]["data"][
            "contentSchema"
        ]
        for event in streamed.events[:-1]:
            check(document, schema, event)


def test_what_is_not_as_it_says_is_found(document: dict[str, Any]) -> None:
    """The schemas are closed: one field more or less is an error."""
    content = document["paths"]["/version"]["get"]["responses"]["200"]["content"]["application/json"]
    for wrong in ({}, {"version": 1}, {"version": "1", "more": 1}):
        with pytest.raises(jsonschema.ValidationError):
            check(document, content["schema"], wrong)


def test_without_workers_it_is_said_and_null(bare: ScriptedSite) -> None:
    document = bare.ask("GET", "/openapi.json").json
    ready = bare.ask("GET", "/ready")
    assert ready.status == 503
    check(document, schema_of(document, "GET", "/ready", ready)["schema"], ready.json)
    models = bare.ask("GET", "/v1/models")
    check(document, schema_of(document, "GET", "/v1/models", models)["schema"], models.json)
    (model,) = models.json["data"]
    assert model["max_model_len"] is model["dtype"] is model["system_fingerprint"] is None
