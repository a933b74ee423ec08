# SPDX-License-Identifier: Apache-2.0
"""Whole answers, as bytes, to connections whose request never reaches Sanic."""

import json
from http import HTTPStatus

from pontil.http.app.request_id import HEADER, request_id
from pontil.http.response.error_object import error_object


def early_answer(status: int, message: str, code: str | None = None, retry: int | None = None) -> bytes:
    """Return an error answer that ends its connection."""
    body = json.dumps(error_object(message, status, code=code)).encode()
    wait = "" if retry is None else f"retry-after: {retry}\r\n"
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n{HEADER}: {request_id(None)}\r\n{wait}connection: close\r\n\r\n"
    )
    return head.encode() + body
