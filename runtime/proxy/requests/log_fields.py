# SPDX-License-Identifier: Apache-2.0
"""The fields by which the proxy's log lines are found: the request, and its trace where it has one."""

from pontil.runtime.proxy.requests.request import Request


def about(request: Request) -> dict[str, str]:
    """Return the `extra` of a log line about a request."""
    return {"request": request.id} | ({} if request.trace is None else {"trace_id": request.trace.trace_id})
