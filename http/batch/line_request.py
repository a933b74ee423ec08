# SPDX-License-Identifier: Apache-2.0
"""A line of a batch as a request of the API: the handlers of the routes answer it as they answer one that came over a
connection, without one."""

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from sanic import Request
from sanic.compat import Header

from pontil.http.access.endpoint import Handler
from pontil.http.anthropic.error_shape import is_of_messages, message_error
from pontil.http.batch.outcome_lines import json_bytes
from pontil.http.stream.error_object import error_of, own_fault, status_of
from pontil.runtime.errors import PontilError
from pontil.runtime.proxy.requests.ticket import Ticket

LOG = logging.getLogger("pontil.http")
# Statuses of what may be answered later.
LATER = (429, 503)


class LineRequest:
    """The parts of a request that handlers look at."""

    def __init__(self, path: str, body: bytes, ticket: Ticket) -> None:
        self.path, self.body, self.method = path, body, "POST"
        self.headers = Header({"content-type": "application/json"})
        self.ctx = SimpleNamespace(ticket=ticket, request_id=ticket.name)
        self.args: dict[str, Any] = {}
        self.route = self.conn_info = None

    @property
    def stream(self) -> AsyncIterator[bytes]:
        return self.pieces()

    async def pieces(self) -> AsyncIterator[bytes]:
        yield self.body


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """The answer to a line: its HTTP status, and its body, which is one line of JSON."""

    status: int
    body: bytes = field(repr=False)

    @property
    def is_good(self) -> bool:
        return self.status < 400

    @property
    def may_come_later(self) -> bool:
        return self.status in LATER


class LineRoutes:
    """The handlers that lines may ask, by their paths, while the server `knows` their caller."""

    def __init__(self, handlers: Mapping[str, Handler], knows: Callable[[str], bool]) -> None:
        self.handlers, self.knows = handlers, knows

    async def answer(self, path: str, body: bytes, ticket: Ticket) -> LineAnswer:
        request = cast(Request, LineRequest(path, body, ticket))
        try:
            response = await self.handlers[path](request)
        except PontilError as error:
            return failed(path, error_of(error), status_of(error), ticket)
        except Exception:  # a fault of ours ends this line alone, as one of a handler ends its request alone
            LOG.exception("the line %s of a batch failed by a fault of ours", ticket.name)
            return failed(path, own_fault(), 500, ticket)
        assert response is not None and response.body is not None, "a line asks for no stream"
        return LineAnswer(response.status, response.body)


def failed(path: str, error: dict[str, Any], status: int, ticket: Ticket) -> LineAnswer:
    """Return an error in the shape of the API that the path belongs to."""
    if is_of_messages(path):
        error = message_error(error["error"]["message"], status, ticket.name)
    return LineAnswer(status, json_bytes(error))
