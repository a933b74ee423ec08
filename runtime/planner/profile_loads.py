# SPDX-License-Identifier: Apache-2.0
"""The loads that a profile puts on a launch of one worker, and what the processor time that they took says."""

from collections.abc import Sequence
from typing import NamedTuple


class ProfileLoad(NamedTuple):
    """So many streams at once, requests of all of them, tokens of each answer and of each prompt."""

    streams: int
    requests: int
    tokens: int
    prompt: int


class ReplayedLoad(NamedTuple):
    """A load in virtual time, on a worker that takes no time but for its steps: their seconds, their number, the rows
    of all of them, and what this machine's processor took for all that is no step."""

    step_seconds: float
    steps: int
    rows: int
    seconds: float


# Loads of one stream, of many requests, many events, and long prompts. Two of them differ in one size only, but for
# the streams.
ALONE, REQUESTS = ProfileLoad(1, 4, 64, 32), ProfileLoad(4, 64, 4, 32)
EVENTS, PROMPTS = ProfileLoad(8, 16, 64, 32), ProfileLoad(4, 24, 4, 512)
LOADS = (ALONE, REQUESTS, EVENTS, PROMPTS)


def solved(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Return the seconds of a request, an event, and a token of a prompt, from those that a process took for each of
    the loads."""
    each = {load: one / load.requests for load, one in zip(LOADS, seconds, strict=True)}
    event = max(0.0, (each[EVENTS] - each[REQUESTS]) / (EVENTS.tokens - REQUESTS.tokens))
    token = max(0.0, (each[PROMPTS] - each[REQUESTS]) / (PROMPTS.prompt - REQUESTS.prompt))
    return max(0.0, each[REQUESTS] - event * REQUESTS.tokens - token * REQUESTS.prompt), event, token


def turn_and_row(replayed: Sequence[ReplayedLoad], seconds: Sequence[float] | None) -> tuple[float, float]:
    """Return the seconds of a worker's turn, and of a row in it, besides the step: from the `seconds` that the launch's
    worker took for each load, or without these from those of the worker in virtual time."""
    points = list[tuple[float, float]]()
    for place in (LOADS.index(ALONE), LOADS.index(EVENTS)):
        one = replayed[place]
        rest = one.seconds if seconds is None else seconds[place] - one.step_seconds
        points.append((one.rows / one.steps, rest / one.steps))
    (few, less), (many, more) = points
    row = max(0.0, (more - less) / (many - few))
    return max(0.0, less - row * few), row
