# SPDX-License-Identifier: Apache-2.0
"""/openapi.json: the declared routes and parameters. OpenAPI 3.2 is the first version with event streams."""

import json
from collections.abc import Sequence
from functools import cached_property, partial
from http import HTTPStatus
from typing import Any

from sanic import HTTPResponse, Request
from sanic.response import raw

from pontil.http.access.endpoint import Endpoint, RouteAccess
from pontil.http.anthropic import schema as message
from pontil.http.ollama import schema as ollama
from pontil.http.schema.parameter import Schema, object_schema
from pontil.http.stream.reply_schema import ANY_OBJECT, ERROR

SCHEMES = {
    "key": {"type": "http", "scheme": "bearer", "description": "An API key of this server."},
    "admin": {"type": "http", "scheme": "bearer", "description": "The admin key, which opens every route."},
}
# By their names in the document.
ERRORS = {"Error": ERROR, message.MESSAGES_ERROR: message.ERROR, ollama.OLLAMA_ERROR: ollama.ERROR}
ABOUT = "An OpenAI-compatible server with prefill and decode on separate process groups."


class OpenApiRoute:
    """The OpenAPI document of `endpoints` and of this one, built when it is first asked for. `asked` are the kinds of
    keys that the server asks for, as in SCHEMES; `strict` is true if it refuses undeclared fields."""

    def __init__(
        self, endpoints: Sequence[Endpoint], version: str, vocab_size: int, *, asked: frozenset[str], strict: bool
    ) -> None:
        self.own = Endpoint("GET", "/openapi.json", self.openapi, "This document.", ANY_OBJECT)
        self.document = partial(document, (*endpoints, self.own), version, vocab_size, asked, strict)

    @cached_property
    def body(self) -> bytes:
        return json.dumps(self.document()).encode()

    async def openapi(self, request: Request) -> HTTPResponse:
        return raw(self.body, content_type="application/json")


def document(
    endpoints: Sequence[Endpoint], version: str, vocab_size: int, key_kinds: frozenset[str], strict: bool
) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        operation_object = operation(endpoint, vocab_size, strict) | security(endpoint.door, key_kinds)
        operation_object["responses"] |= responses_of(refusals(endpoint.door, key_kinds), endpoint.error)
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation_object
    return {
        "openapi": "3.2.0",
        "info": {"title": "pontil", "version": version, "description": ABOUT},
        "paths": paths,
        "components": {"schemas": ERRORS, "securitySchemes": SCHEMES},
    }


def security(door: RouteAccess, key_kinds: frozenset[str]) -> dict[str, Any]:
    """Return the security requirement of an access level; an empty one means no key, which suffices for /admin/ on the
    own machine of a server without an admin key."""
    if door is RouteAccess.ADMIN:
        return {"security": [{"admin": []}] if "admin" in key_kinds else [{}, {"admin": []}]}
    return {"security": [{"key": []}, {"admin": []}] if door is RouteAccess.KEY and "key" in key_kinds else []}


def refusals(door: RouteAccess, key_kinds: frozenset[str]) -> tuple[int, ...]:
    if door is RouteAccess.ADMIN:
        return 401, 403, 429
    if door is RouteAccess.PAGE:
        return (403,)
    return (401, 429) if door is RouteAccess.KEY and "key" in key_kinds else ()


def operation(endpoint: Endpoint, vocab_size: int, strict: bool) -> dict[str, Any]:
    operation_object: dict[str, Any] = {
        "operationId": endpoint.handler.__name__,
        "summary": endpoint.says,
        "responses": responses(endpoint),
    }
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in endpoint.parameters
    ]
    in_query = [{"name": name, "in": "query", "schema": schema} for name, schema in endpoint.asks]
    if in_path or in_query:
        operation_object["parameters"] = in_path + in_query
    if endpoint.takes is not None:
        closed_object = {"additionalProperties": False} if strict else {}
        kinds = [parameters for parameters in (endpoint.takes, endpoint.alternative) if parameters is not None]
        schemas = [object_schema(kind, vocab_size) | closed_object for kind in kinds]
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        operation_object["requestBody"] = {"required": True, "content": {endpoint.body_type: {"schema": schema}}}
    return operation_object


def responses(endpoint: Endpoint) -> dict[str, Any]:
    content: dict[str, Any] = {endpoint.content_type.partition(";")[0]: {"schema": endpoint.gives}}
    if endpoint.events is not None:
        is_events = endpoint.stream_type == "text/event-stream"
        item = event_schema(endpoint.events) if is_events else {"anyOf": [endpoint.events, error_of(endpoint.error)]}
        content[endpoint.stream_type] = {"itemSchema": item}
    response_objects: dict[str, Any] = {"200": {"description": "Success.", "content": content}}
    return response_objects | responses_of(endpoint.errors, endpoint.error)


def responses_of(errors: Sequence[int], name: str) -> dict[str, Any]:
    error = {"application/json": {"schema": error_of(name)}}
    return {str(status): {"description": f"{HTTPStatus(status).phrase}.", "content": error} for status in errors}


def error_of(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def event_schema(chunk: Schema) -> Schema:
    """Return the schema of a stream's event: a chunk, an error, or the end marker."""
    json_text = {"contentMediaType": "application/json", "contentSchema": {"anyOf": [chunk, ERROR]}}
    return {
        "type": "object",
        "properties": {"data": {"type": "string"}},
        "required": ["data"],
        "if": {"properties": {"data": {"const": "[DONE]"}}},
        "else": {"properties": {"data": json_text}},
    }
