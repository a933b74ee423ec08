# SPDX-License-Identifier: Apache-2.0
"""The part that took most of a request's time."""

from collections.abc import Sequence

from pontil.runtime.timeline.timeline import (
    ATTEMPT,
    COMPUTE,
    DECODE,
    HANDOFF,
    PROXY,
    PULL,
    QUEUE,
    RECEIVE,
    TOKENIZE,
    WRITE,
    LargestPart,
    TimeSpan,
)

# The parts in the order in which they hide each other.
HIDING = (COMPUTE, PULL, HANDOFF, DECODE, QUEUE, TOKENIZE, RECEIVE, WRITE, ATTEMPT)
RANKS = {name: rank for rank, name in enumerate(HIDING)}


def largest_part(spans: Sequence[TimeSpan], seconds: float) -> LargestPart | None:
    """Return the part with the largest share of the time until `seconds`; None if there is none.

    Spans overlap, so the sum of a part's spans says little: a pull that is hidden behind the computation of the next
    chunk costs the client nothing. Each moment is therefore counted once, for the part that stands first in HIDING of
    those that are going on. A pull counts where nothing was computed, a handoff where nothing was pulled either, and an
    attempt only where no worker stated a part of it: messages on their way, or workers that send no times. Spans of one
    name in one process are one part.
    """
    edges: list[tuple[float, int, tuple[int, str, str]]] = []
    for span in spans:
        end = min(seconds, seconds if span.end is None else span.end)
        if span.begin < end:
            key = (RANKS.get(span.name, len(RANKS)), span.name, span.process)
            edges += [(span.begin, 1, key), (end, -1, key)]
    edges.sort()
    shares: dict[tuple[int, str, str], float] = {}
    active: dict[tuple[int, str, str], int] = {}
    before = 0.0
    for at, change, key in edges:
        if active and at > before:
            first = min(active)
            shares[first] = shares.get(first, 0.0) + at - before
        before = at
        count = active.get(key, 0) + change
        if count:
            active[key] = count
        else:
            del active[key]
    if not shares:
        return None
    _, name, process = largest = max(shares, key=lambda key: shares[key])
    return LargestPart(name if process == PROXY else f"{name} of {process}", shares[largest])
