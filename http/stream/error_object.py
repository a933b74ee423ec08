# SPDX-License-Identifier: Apache-2.0
"""OpenAI's error object: {"error": {message, type, param, code}}."""

from typing import Any

from pontil.runtime.errors import PontilError, RequestError

KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def error_object(message: str, status: int, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    kind = KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def status_of(error: PontilError) -> int:
    """Return the HTTP status; every error except a client's means missing capacity."""
    return error.status if isinstance(error, RequestError) else 503


def own_fault() -> dict[str, Any]:
    """Return the error object of a fault of this server's own, which its log describes."""
    return error_object("the server made a mistake; its log says more", 500)


def error_of(error: PontilError) -> dict[str, Any]:
    """Return the error object of an exception of this package."""
    if isinstance(error, RequestError):
        return error_object(str(error), error.status, error.param, error.code)
    return error_object(str(error), 503, code="unavailable")
