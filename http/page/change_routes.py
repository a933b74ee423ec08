# SPDX-License-Identifier: Apache-2.0
"""Changes of workers asked for over HTTP: drain, undrain, role and restart."""

from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import unquote

from sanic import HTTPResponse, Request
from sanic.response import json as json_response

from pontil.http.intake.body import BodyReader, understood
from pontil.http.schema.ignored import IgnoredFields
from pontil.http.schema.parameter import Parameter, ParameterTable, Schema
from pontil.http.schema.parameter_types import WordType
from pontil.http.schema.reader import Fields
from pontil.runtime.errors import RequestError
from pontil.runtime.proxy.fleet.operator_changes import ROLES, OperatorChanges

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
