# SPDX-License-Identifier: Apache-2.0
"""The fields by which a worker's log lines are found: the request, and its trace where it has one."""

from pontil.runtime.foundation.trace_context import trace_id_of
from pontil.runtime.wire.messages import Embed, NodeTask, Submit


def about(message: Submit | Embed | NodeTask) -> dict[str, str]:
    """Return the `extra` of a log line about a request."""
    trace_id = trace_id_of(message.traceparent) if isinstance(message, Submit) else None
    return {"request": message.request_id} | ({} if trace_id is None else {"trace_id": trace_id})
