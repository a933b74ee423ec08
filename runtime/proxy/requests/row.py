# SPDX-License-Identifier: Apache-2.0
"""A request of the proxy as a line of its timelines."""

from pontil.runtime.accounting.counts import Usage
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.timeline.timeline import CANCELLED, COMPLETE, FAILED, OPEN, TimelineRow

# The route of a request that did not come by HTTP.
NO_PATH = "-"
# The states of requests that ended otherwise than by their answer's end, by the label of that.
STATES = {"error": FAILED, "cancelled": CANCELLED, "handed_over": CANCELLED}


def row_of(request: Request, model: str, now: float) -> TimelineRow:
    """Return the line of an open request, for this model unless it is for another one."""
    return made_row(request, model, OPEN, None, request.usage, now)


def last_row(request: Request, model: str, label: str, billed: Usage, now: float) -> TimelineRow:
    """Return the line of a request that has ended with this label."""
    return made_row(request, model, STATES.get(label, COMPLETE), request.finish or label, billed, now)


def made_row(request: Request, model: str, state: str, finish: str | None, usage: Usage, now: float) -> TimelineRow:
    recorder, first = request.recorder, first_token_of(request)
    received = recorder.received
    since_epoch = recorder.admitted_at if received is None else received.since_epoch
    return TimelineRow(
        request.id, since_epoch, request.work.model or model,
        NO_PATH if received is None else received.route, request.ticket.caller, state, finish, usage.prompt_tokens,
        usage.cached_tokens, usage.completion_tokens, request.attempts.number + 1,
        None if first is None else max(0.0, first - recorder.since), max(0.0, now - recorder.since),
        () if request.attempts.route is None else tuple(worker.name for worker in request.attempts.route.workers),
        request.work.stage,
        None if request.trace is None else request.trace.trace_id,
    )  # fmt: skip


def first_token_of(request: Request) -> float | None:
    """Return when the first token came, of those since the request was received here: another proxy may have begun
    it."""
    first, recorder = request.times.first_token, request.recorder
    if first is None or first >= recorder.since:
        return first
    recorder.gaps.settle()
    return recorder.gaps.first
