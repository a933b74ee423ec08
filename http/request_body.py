# SPDX-License-Identifier: Apache-2.0
"""The JSON of a request, unless it is declared to be something else."""

import re
from typing import Any

from sanic import Request

from pontil.http.json_body import parse_body
from pontil.runtime.errors import RequestError

JSON_TYPE = re.compile(r"application/(?:[\w.+-]+\+)?json", re.IGNORECASE | re.ASCII)
CHARSET = re.compile(r"charset\s*=\s*\"?([\w-]+)", re.IGNORECASE)
UTF_8 = ("utf-8", "utf8", "us-ascii")


def read_body(request: Request) -> dict[str, Any]:
    """Raises RequestError, 415 for other declarations even where the body holds JSON: a page in a browser, which has an
    origin, can send those to any server without asking it first. Who declares nothing and is no page means JSON."""
    stated = request.headers.getone("content-type", None)
    declared = is_json(stated) if stated is not None else "origin" not in request.headers
    if not declared:
        raise RequestError(
            f"the body is declared as {stated or 'nothing':.100}: send JSON, with content-type: application/json",
            status=415,
            code="unsupported_media_type",
        )
    return parse_body(request.body)


def is_json(stated: str) -> bool:
    """Whether this content type is JSON in UTF-8."""
    kind, _, rest = stated.partition(";")
    charset = CHARSET.search(rest)
    return bool(JSON_TYPE.fullmatch(kind.strip())) and (charset is None or charset[1].lower() in UTF_8)
