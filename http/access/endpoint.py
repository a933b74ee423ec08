# SPDX-License-Identifier: Apache-2.0
"""The declaration of a route: the app serves it and /openapi.json describes it."""

import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sanic import HTTPResponse

from pontil.http.schema.parameter import Parameter, Schema

PARAMETER = re.compile(r"\{(\w+)\}")
MODEL_NAME = "name"
Handler = Callable[..., Coroutine[Any, Any, HTTPResponse | None]]


class RouteAccess(Enum):
    """Access level of a route on a server with keys: open to all, any valid key, or the operator only. Files of the
    live page are served where an operator could use it: a browser cannot show a key when it opens a page."""

    OPEN = "open"
    KEY = "key"
    ADMIN = "admin"
    PAGE = "page"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A route. `takes` are the parameters of its JSON body if it has one, `gives` is the schema of a success (JSON
    unless `content_type` says otherwise), `events` that of a stream's event. `asks` are the parameters of its query, by
    their names, `errors` further statuses to expect. A body may have the parameters of the `alternative` instead, if
    there is one. The body is of the `body_type`, a stream of the `stream_type`. Errors have the schema that is named
    `error` in the document."""

    method: str
    path: str
    handler: Handler
    says: str
    gives: Schema
    takes: tuple[Parameter, ...] | None = None
    events: Schema | None = None
    errors: tuple[int, ...] = ()
    content_type: str = "application/json"
    door: RouteAccess = RouteAccess.KEY
    asks: tuple[tuple[str, Schema], ...] = ()
    alternative: tuple[Parameter, ...] | None = None
    body_type: str = "application/json"
    error: str = "Error"
    stream_type: str = "text/event-stream"

    @property
    def route(self) -> str:
        """The path in sanic's notation. A model's name may have slashes."""
        return PARAMETER.sub(lambda match: f"<{match[1]}:{'path' if match[1] == MODEL_NAME else 'str'}>", self.path)

    @property
    def parameters(self) -> list[str]:
        """The names of the path's parameters."""
        return PARAMETER.findall(self.path)

    @property
    def methods(self) -> list[str]:
        """The method; HEAD comes with every GET."""
        return ["GET", "HEAD"] if self.method == "GET" else [self.method]
