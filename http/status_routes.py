# SPDX-License-Identifier: Apache-2.0
"""What the server says about itself."""

from typing import Any

from sanic import HTTPResponse, Request
from sanic.response import json as json_response
from sanic.response import raw

from pontil.runtime.errors import Unavailable
from pontil.runtime.proxy.proxy import Proxy

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class StatusRoutes:
    """Handlers over one proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy

    async def health(self, request: Request) -> HTTPResponse:
        """Alive, whether anything can be served or not."""
        return json_response({"status": "alive"})

    async def ready(self, request: Request) -> HTTPResponse:
        """200 only when a request can be served now (D21)."""
        if not self.proxy.ready:
            raise Unavailable("the server is shutting down" if self.proxy.draining else "no worker is ready yet")
        return json_response({"status": "ready"})

    async def metrics(self, request: Request) -> HTTPResponse:
        return raw(self.proxy.metrics.render(), content_type=METRICS_TYPE)

    async def ledger(self, request: Request) -> HTTPResponse:
        return json_response(self.proxy.books.sums())

    async def version(self, request: Request) -> HTTPResponse:
        return json_response({"version": self.proxy.config.version})

    async def topology(self, request: Request) -> HTTPResponse:
        """The processes, and how old what a supervisor says of them is: a second, while there is one and it is well."""
        shown: dict[str, Any] = {"processes": self.proxy.topology()}
        if (age := self.proxy.table_age) is not None:
            shown["age_seconds"] = round(age, 1)
        return json_response(shown)
