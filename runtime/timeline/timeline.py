# SPDX-License-Identifier: Apache-2.0
"""The timeline of one request as values. All times are in seconds since the proxy received the request."""

from dataclasses import dataclass
from typing import Any

# The process of the proxy's own parts. A worker's are those of its name.
PROXY = "proxy"
# States of a request.
OPEN, COMPLETE, FAILED, CANCELLED = "open", "complete", "failed", "cancelled"
# Names of the proxy's spans.
RECEIVE, TOKENIZE, QUEUE, ATTEMPT, WRITE = "receive", "tokenize", "queue", "attempt", "write"
# Names of a worker's spans, which has a QUEUE too.
COMPUTE, PULL, HANDOFF, DECODE = "compute", "pull", "handoff", "decode"
# Names of events.
BEGIN, FIRST_TOKEN, PREEMPTED, FAILOVER, FINISHED = "begin", "first_token", "preempted", "failover", "finished"
# Digits of a time that is shown: microseconds.
DIGITS = 6


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A part of a request, in one process. It has not ended where `end` is None. `tokens` were computed in it, `blocks`
    and `bytes` pulled."""

    name: str
    process: str
    begin: float
    end: float | None
    attempt: int | None = None
    tokens: int | None = None
    bytes: int | None = None
    blocks: int | None = None

    def to_json(self) -> dict[str, Any]:
        end = None if self.end is None else round(self.end, DIGITS)
        span_fields = {
            "name": self.name,
            "process": self.process,
            "begin": round(self.begin, DIGITS),
            "end": end,
            "attempt": self.attempt,
        }
        counts = {"tokens": self.tokens, "bytes": self.bytes, "blocks": self.blocks}
        return span_fields | {name: value for name, value in counts.items() if value is not None}


@dataclass(frozen=True, slots=True)
class TimeEvent:
    """A moment of a request, in one process."""

    name: str
    process: str
    at: float
    attempt: int | None = None
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        event_fields = {
            "name": self.name,
            "process": self.process,
            "at": round(self.at, DIGITS),
            "attempt": self.attempt,
        }
        return event_fields | ({} if self.reason is None else {"reason": self.reason})


@dataclass(frozen=True, slots=True)
class Gaps:
    """The times between messages with tokens, as they arrived at the proxy: from `begin`, the first one, entry after
    entry. An entry is of `steps` messages, which took `seconds` together and at most `largest` each. Long answers have
    several steps in an entry."""

    begin: float
    seconds: tuple[float, ...] = ()
    largest: tuple[float, ...] = ()
    steps: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "begin": round(self.begin, DIGITS),
            "seconds": [round(second, DIGITS) for second in self.seconds],
            "largest": [round(gap, DIGITS) for gap in self.largest],
            "steps": list(self.steps),
        }


@dataclass(frozen=True, slots=True)
class LargestPart:
    """The part that took most of a request's time."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """A request in a line. `received_at` is in seconds since 1970, `route` the path that the client asked, `stage` the
    stage of a model of several. `seconds` is until its end, or until now. `workers` are those of the last attempt. The
    `trace_id` names its trace where traces are exported."""

    id: str
    received_at: float
    model: str
    route: str
    caller: str
    state: str
    finish: str | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    attempts: int
    first_token_seconds: float | None
    seconds: float
    workers: tuple[str, ...]
    stage: str | None = None
    trace_id: str | None = None

    def to_json(self) -> dict[str, Any]:
        first = self.first_token_seconds
        row_fields = {name: getattr(self, name) for name in self.__slots__}
        row_fields |= {
            "workers": list(self.workers),
            "seconds": round(self.seconds, DIGITS),
            "first_token_seconds": None if first is None else round(first, DIGITS),
        }
        return {
            name: value for name, value in row_fields.items() if value is not None or name not in ("stage", "trace_id")
        }


@dataclass(frozen=True, slots=True)
class Timeline:
    """A request's `row` and parts: spans by their begin, events by their time."""

    row: TimelineRow
    spans: tuple[TimeSpan, ...]
    events: tuple[TimeEvent, ...]
    gaps: Gaps
    largest: LargestPart | None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of `GET /admin/requests/ID`. It has no text of the request, nor of the answer."""
        largest = self.largest
        return self.row.to_json() | {
            "spans": [span.to_json() for span in self.spans],
            "events": [event.to_json() for event in self.events],
            "gaps": self.gaps.to_json(),
            "largest": None
            if largest is None
            else {
                "name": largest.name,
                "seconds": round(largest.seconds, DIGITS),
            },
        }
