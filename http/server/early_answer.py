# SPDX-License-Identifier: Apache-2.0
"""Whole answers, as bytes, to connections whose request never reaches Sanic."""

import json
from http import HTTPStatus

from sanic.exceptions import SanicException

from pontil.http.server.error_handler import CODES
from pontil.http.server.request_id import HEADER, request_id
from pontil.http.stream.error_object import error_object


def early_answer(error: SanicException) -> bytes:
    """Return an error answer that ends its connection."""
    status = HTTPStatus(error.status_code)
    body = json.dumps(error_object(str(error), status, code=CODES.get(status))).encode()
    stated = {"content-type": "application/json", "content-length": len(body), HEADER: request_id(None)}
    fields = [f"{name}: {value}" for name, value in (stated | error.headers | {"connection": "close"}).items()]
    return "\r\n".join([f"HTTP/1.1 {status.value} {status.phrase}", *fields, "", ""]).encode() + body
