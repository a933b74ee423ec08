# SPDX-License-Identifier: Apache-2.0
"""Error handling for every request: each exception becomes the same error object; an internal error is logged, never
shown."""

import logging
import math
from asyncio import CancelledError
from collections.abc import Collection
from typing import Any

from sanic import HTTPResponse, Request
from sanic.exceptions import MethodNotAllowed, NotFound, PayloadTooLarge, SanicException
from sanic.handlers import ErrorHandler
from sanic.response import json as json_response

from pontil.http.access.access import AccessDenied
from pontil.http.anthropic.error_shape import is_of_messages, message_error
from pontil.http.ollama.error_shape import is_of_ollama, ollama_error
from pontil.http.server.request_id import request_id
from pontil.http.stream.error_object import error_object, error_of, own_fault, status_of
from pontil.runtime.errors import PontilError, RequestError, TooManyRequests, Unavailable

CLASSES = "no model that runs here sorts texts into classes: /v1/score says how well one answers another"
MODELS = "models are not kept here: the server has those that it was started with"
# Prefixes of paths that OpenAI's API and its relatives have and this server has not, with a hint for each.
ABSENT: tuple[tuple[str, str], ...] = (
    ("/v1/conversations", "conversations are no objects here: use previous_response_id of /v1/responses"),
    ("/v1/assistants", "assistants are not served: use /v1/chat/completions"),
    ("/v1/threads", "threads are not kept: send all messages to /v1/chat/completions"),
    ("/v1/complete", "Anthropic's older API is not served: use /v1/messages"),
    ("/v1/classify", CLASSES),
    ("/classify", CLASSES),
    ("/pooling", "pooling is not served: use /v1/embeddings"),
    ("/v1/moderations", "moderation is not served: the model that runs here generates text"),
    ("/v1/audio", "audio is not served: the model that runs here generates text"),
    ("/v1/images", "images are not served: the model that runs here generates text"),
    ("/v1/videos", "videos are not served: the model that runs here generates text"),
    ("/v1/realtime", "the Realtime API is not served: use /v1/chat/completions with stream"),
    ("/v1/uploads", "files are not kept: put their text into the prompt"),
    ("/v1/vector_stores", "files are not kept: put their text into the prompt"),
    ("/v1/fine_tuning", "models are not trained here, only served"),
    ("/v1/edits", "edits are not served: use /v1/chat/completions"),
    *((f"/api/{name}", MODELS) for name in ("pull", "push", "create", "copy", "delete", "blobs")),
    ("/api", "of Ollama's API there are chat, generate, embed, embeddings, tags, show, ps and version"),
)


def what_to_say(path: str, known_paths: Collection[str]) -> str:
    """Return one sentence. `known_paths` are the paths that exist."""
    for beginning, says in ABSENT:
        if path == beginning or path.startswith(f"{beginning}/"):
            return f"there is nothing at {path}: {says}"
    meant = f"/v1{path.replace('/v1', '')}".rstrip("/")
    for guess in (path.rstrip("/"), meant, meant.removeprefix("/v1")):
        if guess in known_paths:
            return f"there is nothing at {path}: did you mean {guess}?"
    return f"there is nothing at {path}: see /v1/completions, /v1/chat/completions, /v1/models and /openapi.json"


LOG = logging.getLogger("pontil.http")
# Status for a client that disconnected: for the log, since no client receives it.
CLIENT_LEFT = 499
# Retry-After where no better estimate is known.
RETRY_SECONDS = 1.0
# The codes of errors before a handler was reached, by their status.
CODES = {404: "not_found", 503: "unavailable"}


class OpenAIErrors(ErrorHandler):
    """Error handler that replaces Sanic's error pages."""

    def default(self, request: Request, exception: Exception) -> HTTPResponse:
        if isinstance(exception, PontilError):
            return answered(request, error_of(exception), status_of(exception), headers_of(exception))
        if isinstance(exception, SanicException):
            status = exception.status_code or 500
            error = error_object(said(request, exception), status, code=CODES.get(status))
            return answered(request, error, status, exception.headers)
        if isinstance(exception, CancelledError):
            LOG.debug("%s %s: the client left", request.method, request.path)
            error = error_object("the client left before the answer was complete", CLIENT_LEFT)
            return answered(request, error, CLIENT_LEFT)
        LOG.error("%s %s failed by a fault of ours", request.method, request.path, exc_info=exception)
        return answered(request, own_fault(), 500)


def answered(
    request: Request, error: dict[str, Any], status: int, headers: dict[str, str] | None = None
) -> HTTPResponse:
    """Return the answer with this error, in the shape of the API that the path belongs to."""
    if is_of_messages(request.path):
        # A request that failed before the first middleware has no id yet.
        request.ctx.request_id = getattr(request.ctx, "request_id", None) or request_id(None)
        error = message_error(error["error"]["message"], status, request.ctx.request_id)
    elif is_of_ollama(request.path):
        error = ollama_error(error["error"]["message"])
    return json_response(error, status, headers=headers)


def headers_of(error: PontilError) -> dict[str, str]:
    """Return the error's headers. Retry-After is in whole seconds, rounded up; a client error has none."""
    if isinstance(error, AccessDenied):
        return error.headers
    if isinstance(error, RequestError) and not isinstance(error, TooManyRequests):
        return {}
    retry_after = error.retry_after if isinstance(error, TooManyRequests | Unavailable) else None
    return {"retry-after": str(max(1, math.ceil(RETRY_SECONDS if retry_after is None else retry_after)))}


def said(request: Request, exception: SanicException) -> str:
    """Return the message for an error before a handler was reached."""
    if isinstance(exception, NotFound):
        return what_to_say(request.path, {f"/{route.path}" for route in request.app.router.routes})
    if isinstance(exception, MethodNotAllowed):
        return f"{request.path} does not take {request.method}: use {exception.headers.get('Allow', 'another method')}"
    if isinstance(exception, PayloadTooLarge):
        return "the request is larger than this server takes: send less"
    return str(exception) or f"the request cannot be served ({exception.status_code})"
