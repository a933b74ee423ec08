# SPDX-License-Identifier: Apache-2.0
"""The log of slow requests."""

import logging

from pontil.runtime.timeline.timeline import Timeline

LOG = logging.getLogger("pontil.requests")


def log_slow(timeline: Timeline) -> None:
    row = timeline.row
    trace = {} if row.trace_id is None else {"trace_id": row.trace_id}
    LOG.warning("%s", slow_line(timeline), extra={"request": row.id} | trace)


def slow_line(timeline: Timeline) -> str:
    """Return one line about a slow request, with the part that took most of its time."""
    row, largest, first = timeline.row, timeline.largest, timeline.row.first_token_seconds
    return (
        f"slow request {row.id} key={row.caller} state={row.state} total={row.seconds:.3f} "
        f"first_token={'-' if first is None else f'{first:.3f}'} "
        f"largest={'-' if largest is None else f'{largest.name} {largest.seconds:.3f} s'} "
        f"workers={','.join(row.workers) or '-'} attempts={row.attempts} "
        f"prompt={row.prompt_tokens} cached={row.cached_tokens} completion={row.completion_tokens}"
    )
