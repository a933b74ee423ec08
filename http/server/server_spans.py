# SPDX-License-Identifier: Apache-2.0
"""The trace of each HTTP request that is answered by a model: from its headers to the end of its handler."""

from asyncio import CancelledError
from functools import wraps
from typing import Any

from sanic import HTTPResponse, Request
from sanic.response import BaseHTTPResponse

from pontil.http.access.endpoint import Endpoint, Handler, RouteAccess
from pontil.http.server.error_handler import CLIENT_LEFT
from pontil.runtime.foundation.trace_context import TRACEPARENT, TRACESTATE
from pontil.runtime.timeline.received import RECEIVED, ReceivedRequest
from pontil.runtime.tracing.tracer import ServedTrace, Tracer


class ServerSpans:
    """The traces of an app's requests. Nothing of this is called where no collector is named."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer

    def over(self, endpoint: Endpoint) -> Handler:
        """Return the endpoint's handler, with traces of its requests if they have a body and are clients'."""
        is_traced = bool(endpoint.takes) and endpoint.door is not RouteAccess.ADMIN
        return self.traced(endpoint.handler) if is_traced else endpoint.handler

    def begin(self, request: Request, received_request: ReceivedRequest) -> ServedTrace:
        headers = request.headers
        trace = request.ctx.trace = self.tracer.begin(
            received_request,
            request.ctx.request_id,
            request.method,
            headers.getall(TRACEPARENT, ()),
            headers.getall(TRACESTATE, ()),
        )
        return trace

    def traced(self, handler: Handler) -> Handler:
        """Return a handler that begins a trace, and ends it: also that of a stream, and of a client that has left."""

        @wraps(handler)
        async def handle(request: Request, *given: Any, **named: Any) -> HTTPResponse | None:
            received_request = RECEIVED.get()
            assert received_request is not None, "a request is received before it is handled"
            trace = self.begin(request, received_request)
            try:
                response = await handler(request, *given, **named)
            except CancelledError:
                self.tracer.handled(trace, CLIENT_LEFT)
                raise
            except BaseException:
                # The response to it states its status.
                self.tracer.handled(trace)
                raise
            self.tracer.handled(trace, None if response is None else response.status)
            return response

        return handle

    def name(self, request: Request, response: BaseHTTPResponse) -> None:
        """Tell the client the place of the server span, so that it finds the trace."""
        trace = trace_of(request)
        if trace is not None:
            response.headers[TRACEPARENT] = trace.context.traceparent
            self.tracer.responded(trace, response.status)


def trace_of(request: Request) -> ServedTrace | None:
    return getattr(request.ctx, "trace", None)
