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
    """A load in virtual time, on a worker that takes no time but for its steps: their seconds, their number, and what
    this machine's processor took for all that is no step."""

    step_seconds: float
    steps: int
    seconds: float


# Loads of one stream, of many requests, many events, and long prompts. Two of them differ in one size only, but for
# the streams.
ALONE, REQUESTS = ProfileLoad(1, 4, 64, 32), ProfileLoad(4, 64, 4, 32)
EVENTS, PROMPTS = ProfileLoad(8, 16, 64, 32), ProfileLoad(4, 12, 4, 512)
LOADS = (ALONE, REQUESTS, EVENTS, PROMPTS)
# Turns of a request in which events come, its part of those of several streams: as many as steps in virtual time.
HEARD = {ALONE: 64.0, REQUESTS: 1.25, EVENTS: 8.25, PROMPTS: 4.25}
# Times that three unknown ones are solved for in turn.
TURNS = 50


class ServingTimes(NamedTuple):
    """The seconds of a proxy, or of clients: for a request, an event, a token of a prompt, and a turn with events."""

    request: float
    event: float
    token: float
    turn: float


def solved(seconds: Sequence[float]) -> ServingTimes:
    """Return the times of a process from those that it took for each of the loads."""
    each = {load: one / load.requests for load, one in zip(LOADS, seconds, strict=True)}
    turn = max(0.0, (each[ALONE] - each[EVENTS]) / (HEARD[ALONE] - HEARD[EVENTS]))
    rest = {load: each[load] - turn * HEARD[load] for load in LOADS}
    event = max(0.0, (rest[EVENTS] - rest[REQUESTS]) / (EVENTS.tokens - REQUESTS.tokens))
    token = max(0.0, (rest[PROMPTS] - rest[REQUESTS]) / (PROMPTS.prompt - REQUESTS.prompt))
    request = max(0.0, rest[REQUESTS] - event * REQUESTS.tokens - token * REQUESTS.prompt)
    return ServingTimes(request, event, token, turn)


class WorkerTimes(NamedTuple):
    """The seconds of a worker besides its steps: of a turn, of each row, and of each token of a prompt."""

    turn: float
    row: float
    token: float


def worker_times(replayed: Sequence[ReplayedLoad], seconds: Sequence[float] | None) -> WorkerTimes:
    """Return the times of a worker, from the `seconds` that the launch's one took for each load, or without these from
    those of the worker in virtual time."""
    rest = [one.seconds for one in replayed]
    if seconds is not None:
        rest = [all_seconds - one.step_seconds for all_seconds, one in zip(seconds, replayed, strict=True)]
    each = {load: one / made.steps for load, one, made in zip(LOADS, rest, replayed, strict=True)}
    rows = {load: load.requests * load.tokens / made.steps for load, made in zip(LOADS, replayed, strict=True)}
    prompts = {load: load.requests * load.prompt / made.steps for load, made in zip(LOADS, replayed, strict=True)}
    turn = row = token = 0.0
    for _ in range(TURNS):
        alone, events = each[ALONE] - token * prompts[ALONE], each[EVENTS] - token * prompts[EVENTS]
        row = max(0.0, (events - alone) / (rows[EVENTS] - rows[ALONE]))
        turn = max(0.0, alone - row * rows[ALONE])
        token = max(0.0, (each[PROMPTS] - turn - row * rows[PROMPTS]) / prompts[PROMPTS])
    return WorkerTimes(turn, row, token)
