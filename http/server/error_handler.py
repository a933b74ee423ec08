# SPDX-License-Identifier: Apache-2.0
"""Error handling for every request: each exception becomes the same error object; an internal error is logged, never
shown."""

import logging
import math
from asyncio import CancelledError

from sanic import HTTPResponse, Request
from sanic.exceptions import MethodNotAllowed, NotFound, PayloadTooLarge, SanicException
from sanic.handlers import ErrorHandler
from sanic.response import json as json_response

from pontil.http.access.access import AccessDenied
from pontil.http.server.unknown_path import what_to_say
from pontil.http.stream.error_object import error_object, error_of, status_of
from pontil.runtime.errors import PontilError, RequestError, TooManyRequests, Unavailable

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
            return json_response(error_of(exception), status_of(exception), headers=headers_of(exception))
        if isinstance(exception, SanicException):
            status = exception.status_code or 500
            return json_response(error_object(said(request, exception), status, code=CODES.get(status)), status,
                                 headers=exception.headers)  # fmt: skip
        if isinstance(exception, CancelledError):
            LOG.debug("%s %s: the client left", request.method, request.path)
            return json_response(
                error_object("the client left before the answer was complete", CLIENT_LEFT), CLIENT_LEFT
            )
        LOG.error("%s %s failed by a fault of ours", request.method, request.path, exc_info=exception)
        return json_response(error_object("the server made a mistake; its log says more", 500), 500)


def headers_of(error: PontilError) -> dict[str, str]:
    """Return the error's headers. Retry-After is in whole seconds, rounded up; a client error has none."""
    if isinstance(error, AccessDenied):
        return error.headers
    if isinstance(error, RequestError) and not isinstance(error, TooManyRequests):
        return {}
    stated = error.retry_after if isinstance(error, TooManyRequests | Unavailable) else None
    return {"retry-after": str(max(1, math.ceil(RETRY_SECONDS if stated is None else stated)))}


def said(request: Request, exception: SanicException) -> str:
    """Return the message for an error before a handler was reached."""
    if isinstance(exception, NotFound):
        return what_to_say(request.path, {f"/{route.path}" for route in request.app.router.routes})
    if isinstance(exception, MethodNotAllowed):
        return f"{request.path} does not take {request.method}: use {exception.headers.get('Allow', 'another method')}"
    if isinstance(exception, PayloadTooLarge):
        return "the request is larger than this server takes: send less"
    return str(exception) or f"the request cannot be served ({exception.status_code})"
