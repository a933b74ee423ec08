# SPDX-License-Identifier: Apache-2.0
"""The states of a child process, the one table of moves between them, and the drain state of a healthy worker."""

from enum import Enum


class ChildState(Enum):
    STARTING = "starting"
    READY = "ready"
    STALE = "stale"
    DRAINING = "draining"
    KILLED = "killed"
    EXITED = "exited"
    BACKOFF = "backoff"
    GIVEN_UP = "given_up"
    ASLEEP = "asleep"

    @property
    def alive(self) -> bool:
        """Return whether a process exists. It does in KILLED: signalled, but not yet gone."""
        return self not in (ChildState.EXITED, ChildState.BACKOFF, ChildState.GIVEN_UP, ChildState.ASLEEP)


class DrainState(Enum):
    """The operator's wish whether a healthy worker takes requests; not a process state. A drained worker has no
    requests left."""

    WORKING = "working"
    DRAINING = "draining"
    DRAINED = "drained"


TRANSITIONS: dict[ChildState, frozenset[ChildState]] = {
    ChildState.STARTING: frozenset({ChildState.READY, ChildState.KILLED, ChildState.EXITED}),
    ChildState.READY: frozenset({ChildState.DRAINING, ChildState.STALE, ChildState.EXITED}),
    ChildState.STALE: frozenset({ChildState.KILLED, ChildState.EXITED}),
    ChildState.DRAINING: frozenset({ChildState.KILLED, ChildState.EXITED}),
    ChildState.KILLED: frozenset({ChildState.EXITED}),
    ChildState.EXITED: frozenset({ChildState.BACKOFF}),
    ChildState.BACKOFF: frozenset({ChildState.STARTING, ChildState.GIVEN_UP, ChildState.ASLEEP}),
    ChildState.GIVEN_UP: frozenset(),
    ChildState.ASLEEP: frozenset({ChildState.BACKOFF}),
}


def moved(name: str, old: ChildState, new: ChildState) -> ChildState:
    """Return the new state. A move that is not in the table is a bug of pontil and raises AssertionError, also under
    `python -O`."""
    if new not in TRANSITIONS[old]:
        raise AssertionError(f"{name} cannot go from {old.name} to {new.name}")
    return new
