# SPDX-License-Identifier: Apache-2.0
"""The live page of one proxy: its routes, and the events that they show."""

from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import unquote

from sanic import HTTPResponse, Request
from sanic.response import json as json_response

from pontil.http.access.endpoint import Endpoint, RouteAccess
from pontil.http.intake.body import BODY_ERRORS, BodyReader, understood
from pontil.http.page.live_events import LiveEvents
from pontil.http.page.page_files import PageRoutes
from pontil.http.schema.parameter import Parameter, ParameterTable, Schema
from pontil.http.schema.parameter_types import WordType
from pontil.http.schema.reader import Fields, IgnoredFields
from pontil.http.stream import reply_schema as reply
from pontil.runtime.errors import RequestError
from pontil.runtime.proxy.fleet.operator_changes import ROLES, OperatorChanges
from pontil.runtime.proxy.live_snapshot import LiveSnapshot
from pontil.runtime.proxy.proxy import Proxy

CHANGE = (
    Parameter("role", WordType(ROLES), "the part of the work that the worker is to do; for the action role only"),
)
TABLE = ParameterTable(CHANGE)
CHANGED: Schema = {
    "type": "object",
    "properties": {
        "worker": {"type": "string"},
        "action": {"type": "string"},
        "lines": {"type": "array", "items": {"type": "string"}},
        "outcome": {"type": "string"},
    },
    "required": ["worker", "action", "lines", "outcome"],
}


class ChangeRoutes:
    """Handler over the changes of one proxy."""

    def __init__(self, changes: OperatorChanges, bodies: BodyReader) -> None:
        self.changes, self.bodies = changes, bodies

    async def change_worker(self, request: Request, worker: str, action: str) -> HTTPResponse:
        """Have the supervisor change a worker, and answer when it is done; 409 with its reason if it is not. The change
        goes on if the client leaves."""
        role = await self.role_for(request)
        change = await self.changes.outcome(self.changes.begin(action, unquote(worker), role))
        outcome = change.outcome or ""
        if change.failed:
            raise RequestError(outcome.rstrip("."), status=409, code="change_failed")
        return json_response(
            {"worker": change.worker, "action": change.action, "lines": change.lines, "outcome": outcome}
        )

    async def role_for(self, request: Request) -> str | None:
        """Return the role that the body names. Raises RequestError. It counts as being read only until then: the same
        body may be sent again if the proxy dies before the change is done."""
        role = await self.bodies.read(request, partial(read_role, ignored=self.bodies.ignored(request)))
        understood(request)
        return role


def read_role(data: Mapping[str, Any], ignored: IgnoredFields | None = None) -> str | None:
    """Parse the body. Raises RequestError."""
    role: str | None = TABLE.read(Fields(data, ignored=ignored))["role"]
    return role


class LivePage:
    def __init__(self, proxy: Proxy) -> None:
        self.proxy, self.live = proxy, LiveEvents(LiveSnapshot(proxy))

    def endpoints(self, bodies: BodyReader) -> tuple[Endpoint, ...]:
        """The live page, with what it shows and does."""
        files, live, changes = PageRoutes(), self.live, ChangeRoutes(self.proxy.changes, bodies)
        return (
            Endpoint(
                "GET",
                "/admin/ui",
                files.admin_page,
                "The live page.",
                reply.TEXT,
                content_type="text/html",
                door=RouteAccess.PAGE,
            ),
            Endpoint(
                "GET",
                "/admin/ui/{file}",
                files.admin_page_file,
                "A file of the live page.",
                reply.TEXT,
                errors=(404,),
                content_type="text/javascript",
                door=RouteAccess.PAGE,
            ),
            Endpoint(
                "GET",
                "/admin/events",
                live.admin_events,
                "A snapshot of the server each second.",
                reply.ANY_OBJECT,
                events=reply.ANY_OBJECT,
                errors=(503,),
                content_type="text/event-stream",
                door=RouteAccess.ADMIN,
            ),
            Endpoint(
                "POST",
                "/admin/workers/{worker}/{action}",
                changes.change_worker,
                "Drain, undrain or restart a worker, or give it another role.",
                CHANGED,
                CHANGE,
                errors=(*BODY_ERRORS, 409, 503),
                door=RouteAccess.ADMIN,
            ),
        )

    async def close(self, *_: object) -> None:
        """End all streams of events."""
        await self.live.close()
