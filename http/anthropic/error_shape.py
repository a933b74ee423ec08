# SPDX-License-Identifier: Apache-2.0
"""Anthropic's error object: {"type": "error", "error": {type, message}, "request_id"}."""

from typing import Any

# Every path from here on is of this API, those that are not served too.
PATH = "/v1/messages"
REQUEST_ID = "request-id"
KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def is_of_messages(path: str) -> bool:
    return path == PATH or path.startswith(f"{PATH}/")


def message_error(message: str, status: int, request_id: str | None) -> dict[str, Any]:
    kind = KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}
