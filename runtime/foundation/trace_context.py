# SPDX-License-Identifier: Apache-2.0
"""W3C Trace Context: which trace a request belongs to, as the headers `traceparent` and `tracestate` say it.

Source: the Recommendation "Trace Context" (www.w3.org/TR/trace-context). What is malformed is no error: such a request
begins a trace of its own.
"""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
# Version, trace id, span id and flags. Versions after 00 may have more behind a dash.
FIELDS = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", re.ASCII)
FIELDS_LENGTH = 55
NO_TRACE, NO_SPAN = "0" * 32, "0" * 16
KNOWN_VERSION, NO_VERSION = "00", "ff"
SAMPLED = 0x01
# Flags that have a meaning: sampled, and that the trace id is random.
KNOWN_FLAGS = 0x03
# A member of tracestate: KEY or TENANT@SYSTEM, and a value of printable ASCII that ends in no blank.
MEMBER = re.compile(
    r"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]",
    re.ASCII,
)
MOST_MEMBERS = 32
# Characters of a tracestate that is passed on, and of a member that goes first where there are more.
MOST_STATE, LONG_MEMBER = 512, 128
# A tracestate longer than this is not looked at.
MOST_READ = 8192


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A place in a trace: `trace_id` of 32 and `span_id` of 16 lowercase hexadecimal digits, and the `flags`. `state`
    is the tracestate, for other tracing systems."""

    trace_id: str
    span_id: str
    flags: int
    state: str = ""

    @property
    def is_sampled(self) -> bool:
        """True if whoever began the trace wants to keep it."""
        return bool(self.flags & SAMPLED)

    @property
    def traceparent(self) -> str:
        return f"{KNOWN_VERSION}-{self.trace_id}-{self.span_id}-{self.flags & KNOWN_FLAGS:02x}"

    def child(self) -> "TraceContext":
        """Return the place of a new span of this trace."""
        return replace(self, span_id=secrets.token_hex(8))


def new_trace(sample_rate: float) -> TraceContext:
    """Begin a trace, which is sampled with this probability."""
    trace_id = secrets.token_hex(16)
    return TraceContext(trace_id, secrets.token_hex(8), SAMPLED if is_within(trace_id, sample_rate) else 0)


def is_within(trace_id: str, rate: float) -> bool:
    """Return whether a trace belongs to this share of all traces: by its id, so that all who ask agree."""
    return int(trace_id[16:], 16) < rate * 2**64


def read_context(parents: Sequence[str], states: Sequence[str] = ()) -> TraceContext | None:
    """Return what a request's headers of these names say, or None if there is not exactly one valid traceparent."""
    if len(parents) != 1:
        return None
    parent = parents[0]
    match = FIELDS.match(parent)
    if match is None:
        return None
    version, trace_id, span_id, flags = match.groups()
    suffix = parent[FIELDS_LENGTH:]
    if version == NO_VERSION or (suffix and (version == KNOWN_VERSION or suffix[0] != "-")):
        return None
    if trace_id == NO_TRACE or span_id == NO_SPAN:
        return None
    return TraceContext(trace_id, span_id, int(flags, 16), read_state(states))


def read_state(states: Sequence[str]) -> str:
    """Return the tracestate as it is passed on, "" if it is malformed."""
    if sum(map(len, states)) > MOST_READ:
        return ""
    members = [list_member for entry in ",".join(states).split(",") if (list_member := entry.strip(" \t"))]
    keys = {member.partition("=")[0] for member in members}
    if len(members) > MOST_MEMBERS or len(keys) < len(members) or not all(map(MEMBER.fullmatch, members)):
        return ""
    return within_limits(members)


def within_limits(members: list[str]) -> str:
    """Join the members. Where that is too long, the long ones are left out, then the last ones."""
    if length_of(members) > MOST_STATE:
        members = [member for member in members if len(member) <= LONG_MEMBER]
    while length_of(members) > MOST_STATE:
        members.pop()
    return ",".join(members)


def length_of(members: list[str]) -> int:
    return sum(map(len, members)) + len(members) - 1


def trace_id_of(traceparent: str | None) -> str | None:
    """Return the trace id of a traceparent that this system made, as log lines show it."""
    context = None if traceparent is None else read_context([traceparent])
    return None if context is None else context.trace_id
