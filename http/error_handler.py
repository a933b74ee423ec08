# SPDX-License-Identifier: Apache-2.0
"""Every exception of every request becomes the one kind of error object; a bug of ours is logged, never shown."""

import logging
from asyncio import CancelledError

from sanic import HTTPResponse, Request
from sanic.exceptions import MethodNotAllowed, NotFound, PayloadTooLarge, SanicException
from sanic.handlers import ErrorHandler
from sanic.response import json as json_response

from pontil.http.error_object import error_object, error_of, status_of
from pontil.runtime.errors import PontilError, RequestError

LOG = logging.getLogger("pontil.http")
# What is logged of a client that closed its connection; nobody is there to read it.
CLIENT_LEFT = 499
RETRY_AFTER = {"retry-after": "1"}


class OpenAIErrors(ErrorHandler):
    """In place of Sanic's own pages."""

    def default(self, request: Request, exception: Exception) -> HTTPResponse:
        if isinstance(exception, PontilError):
            status = status_of(exception)
            headers = {} if isinstance(exception, RequestError) else RETRY_AFTER
            return json_response(error_of(exception), status, headers=headers)
        if isinstance(exception, SanicException):
            status = exception.status_code or 500
            code = "not_found" if isinstance(exception, NotFound) else None
            return json_response(error_object(said(request, exception), status, code=code), status,
                                 headers=exception.headers)  # fmt: skip
        if isinstance(exception, CancelledError):
            LOG.debug("%s %s: the client left", request.method, request.path)
            return json_response(
                error_object("the client left before the answer was complete", CLIENT_LEFT), CLIENT_LEFT
            )
        LOG.error("%s %s failed by a fault of ours", request.method, request.path, exc_info=exception)
        return json_response(error_object("the server made a mistake; its log says more", 500), 500)


def said(request: Request, exception: SanicException) -> str:
    """What went wrong before a handler of ours was reached."""
    if isinstance(exception, NotFound):
        return f"there is nothing at {request.path}: see /v1/completions, /v1/chat/completions and /v1/models"
    if isinstance(exception, MethodNotAllowed):
        return f"{request.path} does not take {request.method}: use {exception.headers.get('Allow', 'another method')}"
    if isinstance(exception, PayloadTooLarge):
        return "the request is larger than this server takes: send less"
    return str(exception) or f"the request cannot be served ({exception.status_code})"
