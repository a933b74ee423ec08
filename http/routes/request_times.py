# SPDX-License-Identifier: Apache-2.0
"""Routes that show where requests' time went."""

from typing import Any

from sanic import HTTPResponse, Request
from sanic.response import json as json_response

from pontil.runtime.errors import RequestError
from pontil.runtime.proxy.proxy import Proxy


class RequestTimes:
    """Handlers over one proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy

    async def list_requests(self, request: Request) -> HTTPResponse:
        """Return the latest requests, the open ones and those that ended, in a line each."""
        return json_response({"requests": [row.to_json() for row in self.proxy.timelines.rows()]})

    async def show_request(self, request: Request, request_id: str) -> HTTPResponse:
        """Return the timeline of a request, by its id; by that of an HTTP request with several prompts those of all.
        Raises RequestError (404) for an id that is not known here."""
        timelines, now = self.proxy.timelines, self.proxy.clock()
        found: list[dict[str, Any]] = [one.timeline(now).to_json() for one in timelines.named(request_id)]
        if not found:
            raise self.not_found(request_id)
        return json_response(found[0] if len(found) == 1 else {"requests": found})

    def not_found(self, request_id: str) -> RequestError:
        config = self.proxy.config
        others = "" if config.proxies == 1 else f"; {config.name} answers, and another proxy may know it: ask again"
        says = f"no request {ascii(request_id):.150} is known here: the last {self.proxy.timelines.most} are{others}"
        return RequestError(says, status=404, code="not_found")
