# SPDX-License-Identifier: Apache-2.0
"""OPTIONS on every path, which browsers ask before a request, and HEAD on those that have no GET."""

from collections.abc import Collection, Iterable
from typing import Any

from sanic import HTTPResponse, Request, Sanic
from sanic.response import empty

from pontil.http.access.access import CrossOrigin
from pontil.http.access.endpoint import Endpoint, RouteAccess

METHODS = ("HEAD", "OPTIONS")


class Probe:
    """The answer to both methods on one path: an empty one that says which `methods` the path has."""

    def __init__(self, methods: Iterable[str], pages: CrossOrigin) -> None:
        self.methods, self.pages = ", ".join(sorted({*methods, *METHODS})), pages

    async def answer(self, request: Request, **captured: str) -> HTTPResponse:
        asks = request.method == "OPTIONS" and "access-control-request-method" in request.headers
        sharing = self.pages.headers(request.headers, self.methods) if asks else {}
        return empty(headers={"allow": self.methods} | sharing)


def add_probes(app: Sanic[Any, Any], served_endpoints: Collection[Endpoint], pages: CrossOrigin) -> None:
    methods: dict[str, list[str]] = {}
    operators = {
        endpoint.route for endpoint in served_endpoints if endpoint.door in (RouteAccess.ADMIN, RouteAccess.PAGE)
    }
    for endpoint in served_endpoints:
        methods.setdefault(endpoint.route, []).extend(endpoint.methods)
    for number, (route, there) in enumerate(methods.items()):
        probe = Probe(there, CrossOrigin() if route in operators else pages)
        app.add_route(
            probe.answer,
            route,
            methods=set(METHODS) - set(there),
            name=f"probe_{number}",
            ignore_body=True,
            error_format="json",
        )
