# SPDX-License-Identifier: Apache-2.0
"""Requests of a record that an operator sends again: the header pontil-replay has what their bodies do not say."""

import json
from dataclasses import replace
from typing import Any

from sanic import Request

from pontil.runtime.errors import RequestError
from pontil.runtime.proxy.requests.ticket import Replay, Ticket
from pontil.runtime.receipts.statement import is_hex

HEADER = "pontil-replay"
MOST_BYTES = 4096
MOST_SEED = 1 << 64
WRONG = f"{HEADER} is for `pontil replay`: send seeds, at, worker and adapter as it does"


def replayed(request: Request) -> Ticket:
    """Return the ticket of a request, which an operator may have sent again. Raises AccessDenied for anybody else, and
    RequestError."""
    ticket: Ticket = request.ctx.ticket
    text = request.headers.getone(HEADER, None)
    if text is None:
        return ticket
    request.app.ctx.access.check_operator(request)
    return replace(ticket, replay=read(text))


def read(text: str) -> Replay:
    try:
        data: Any = json.loads(text) if len(text) <= MOST_BYTES else None
        seeds, at, worker, adapter = (data.get(name) for name in ("seeds", "at", "worker", "adapter"))
    except (ValueError, RecursionError, AttributeError):
        raise RequestError(WRONG) from None
    are_seeds = isinstance(seeds, list) and all(type(seed) is int and 0 <= seed < MOST_SEED for seed in seeds)
    is_time = type(at) is int and 0 <= at < 1 << 40
    is_digest = adapter is None or adapter == "" or is_hex(adapter, 32)
    if not (are_seeds and is_time and is_digest and (worker is None or type(worker) is str)):
        raise RequestError(WRONG)
    return Replay(tuple(seeds), at, worker, adapter)
