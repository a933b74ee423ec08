# SPDX-License-Identifier: Apache-2.0
"""X-Request-Id: the client's own if it is usable, else a new one; the same in response, logs and workers (F6)."""

import logging
import re
import secrets
from contextvars import ContextVar

from pontil.runtime.timeline.received import RECEIVED
from pontil.runtime.tracing.tracer import ServedTrace

HEADER = "x-request-id"
USABLE = re.compile(r"[A-Za-z0-9._:-]{1,128}")
# The id of the request that is being handled.
CURRENT: ContextVar[str | None] = ContextVar("request", default=None)


class WithRequestId(logging.Filter):
    """Logging filter that drops nothing and adds the request's id, and that of its trace, to records logged while a
    request is handled."""

    def filter(self, record: logging.LogRecord) -> bool:
        name, received_request = CURRENT.get(), RECEIVED.get()
        if name is not None and getattr(record, "request", None) is None:
            record.request = name
            if received_request is not None and isinstance(received_request.trace, ServedTrace):
                record.trace_id = received_request.trace.context.trace_id
        return True


def request_id(given_id: str | None) -> str:
    """Return an id that is safe in headers and logs."""
    return given_id if given_id is not None and USABLE.fullmatch(given_id) else secrets.token_hex(12)
