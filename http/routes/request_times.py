# SPDX-License-Identifier: Apache-2.0
"""Routes that show where requests' time went, and the schemas of what they show."""

from urllib.parse import unquote

from sanic import HTTPResponse, Request
from sanic.response import json as json_response
from sanic.response import raw

from pontil.http.schema.parameter import Schema
from pontil.http.stream.reply_schema import COUNT, NUMBER, TEXT, closed, many, nullable
from pontil.runtime.errors import RequestError
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.timeline.timeline import CANCELLED, COMPLETE, FAILED, OPEN

ROW: dict[str, Schema] = {
    "id": TEXT,
    "received_at": NUMBER,
    "model": TEXT,
    "route": TEXT,
    "caller": TEXT,
    "state": {"enum": [OPEN, COMPLETE, FAILED, CANCELLED]},
    "finish": nullable(TEXT),
    "prompt_tokens": COUNT,
    "cached_tokens": COUNT,
    "completion_tokens": COUNT,
    "attempts": COUNT,
    "first_token_seconds": nullable(NUMBER),
    "seconds": NUMBER,
    "workers": many(TEXT),
    "stage": TEXT,
    "trace_id": TEXT,
}
MAY_LACK = ("stage", "trace_id")
TIME_SPAN = closed(
    {
        "name": TEXT,
        "process": TEXT,
        "begin": NUMBER,
        "end": nullable(NUMBER),
        "attempt": nullable(COUNT),
        "tokens": COUNT,
        "bytes": COUNT,
        "blocks": COUNT,
    },
    ("tokens", "bytes", "blocks"),
)
TIME_EVENT = closed(
    {"name": TEXT, "process": TEXT, "at": NUMBER, "attempt": nullable(COUNT), "reason": TEXT}, ("reason",)
)
GAPS = closed({"begin": NUMBER, "seconds": many(NUMBER), "largest": many(NUMBER), "steps": many(COUNT)})
LARGEST = closed({"name": TEXT, "seconds": NUMBER})
PARTS = {"spans": many(TIME_SPAN), "events": many(TIME_EVENT), "gaps": GAPS, "largest": nullable(LARGEST)}
REQUESTS = closed({"requests": many(closed(ROW, MAY_LACK))})
TIMELINE = closed(ROW | PARTS, MAY_LACK)
TIMELINES: Schema = {"anyOf": [TIMELINE, closed({"requests": many(TIMELINE)})]}


class RequestTimes:
    """Handlers over one proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy

    async def list_requests(self, request: Request) -> HTTPResponse:
        """Return the latest requests, the open ones and those that ended, in a line each."""
        return json_response({"requests": [row.to_json() for row in self.proxy.timelines.rows()]})

    async def show_request(self, request: Request, request_id: str) -> HTTPResponse:
        """Return the timeline of a request, by its id; by that of an HTTP request with several prompts those of all.
        What is not known here may be known to another proxy. Raises RequestError (404) for an id that none knows."""
        # Browsers encode a colon, which an id may have.
        request_id = unquote(request_id)
        if timeline := self.proxy.timelines.shown(request_id):
            return json_response(timeline)
        exchange = self.proxy.fleet.exchange
        elsewhere = None if exchange is None else await exchange.ask(request_id)
        if elsewhere is None:
            raise self.not_found(request_id)
        return raw(elsewhere, content_type="application/json")

    def not_found(self, request_id: str) -> RequestError:
        config = self.proxy.config
        other_proxies = (
            "" if config.proxies == 1 else f"; {config.name} answers, and no other proxy that it asked said more"
        )
        says = f"no request {ascii(request_id):.150} is known: the last {self.proxy.timelines.most} are{other_proxies}"
        return RequestError(says, status=404, code="not_found")
