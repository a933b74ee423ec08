# SPDX-License-Identifier: Apache-2.0
"""/openapi.json: the declared routes and parameters. OpenAPI 3.2 is the first version that knows event streams."""

import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from sanic import HTTPResponse, Request
from sanic.response import raw

from pontil.http.endpoint import Endpoint
from pontil.http.parameter import Schema, object_schema
from pontil.http.reply_schema import ANY_OBJECT, ERROR

ABOUT = "An OpenAI-compatible server with prefill and decode on separate process groups."


class OpenApiRoute:
    """The document about `endpoints` and itself, made once."""

    def __init__(self, endpoints: Sequence[Endpoint], version: str, vocab_size: int) -> None:
        self.own = Endpoint("GET", "/openapi.json", self.openapi, "This document.", ANY_OBJECT)
        self.body = json.dumps(document((*endpoints, self.own), version, vocab_size)).encode()

    async def openapi(self, request: Request) -> HTTPResponse:
        return raw(self.body, content_type="application/json")


def document(endpoints: Sequence[Endpoint], version: str, vocab_size: int) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation(endpoint, vocab_size)
    return {
        "openapi": "3.2.0",
        "info": {"title": "pontil", "version": version, "description": ABOUT},
        "paths": paths,
        "components": {"schemas": {"Error": ERROR}},
    }


def operation(endpoint: Endpoint, vocab_size: int) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": endpoint.handler.__name__,
        "summary": endpoint.says,
        "responses": responses(endpoint),
    }
    if "{name}" in endpoint.path:
        described["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    if endpoint.takes is not None:
        schema = object_schema(endpoint.takes, vocab_size)
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return described


def responses(endpoint: Endpoint) -> dict[str, Any]:
    content: dict[str, Any] = {endpoint.content_type.partition(";")[0]: {"schema": endpoint.gives}}
    if endpoint.events is not None:
        content["text/event-stream"] = {"itemSchema": event_schema(endpoint.events)}
    described: dict[str, Any] = {"200": {"description": "Success.", "content": content}}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    for status in endpoint.errors:
        described[str(status)] = {"description": f"{HTTPStatus(status).phrase}.", "content": error}
    return described


def event_schema(chunk: Schema) -> Schema:
    """An event of a stream: a chunk, or an error, or the end."""
    json_text = {"contentMediaType": "application/json", "contentSchema": {"anyOf": [chunk, ERROR]}}
    return {
        "type": "object",
        "properties": {"data": {"type": "string"}},
        "required": ["data"],
        "if": {"properties": {"data": {"const": "[DONE]"}}},
        "else": {"properties": {"data": json_text}},
    }
