# SPDX-License-Identifier: Apache-2.0
"""A disturbance of one process for a time, as a pure state machine: it is undone, whatever happens first.

The process is known by the time it was started at. One that has ended needs nothing undone, and the next one of the
same name is never touched.
"""

from dataclasses import dataclass, replace
from enum import Enum

# Seconds that a slowed process stands still and runs, in turn: it gets a fifth of the time.
STILL, RUNS = 0.2, 0.05


class FaultKind(Enum):
    KILL = "kill"
    STOP = "stop"
    SLOW = "slow"
    CUT = "cut"
    STALL = "stall"

    @property
    def is_of_links(self) -> bool:
        """True if a worker does it itself, on command."""
        return self in (FaultKind.CUT, FaultKind.STALL)


class DisturbanceState(Enum):
    """RUNNING: the process runs, with its links disturbed, or until its next stop. STOPPED: it was sent SIGSTOP."""

    RUNNING = "running"
    STOPPED = "stopped"
    OVER = "over"


class FaultAction(Enum):
    """An act upon the process: SIGKILL, SIGSTOP, SIGCONT, or an order to cut or to mend its link to other workers,
    or to stall or to release all its links."""

    KILL = "kill"
    STOP = "stop"
    CONTINUE = "continue"
    CUT = "cut"
    MEND = "mend"
    STALL = "stall"
    RELEASE = "release"


RUNNING, STOPPED, OVER = DisturbanceState.RUNNING, DisturbanceState.STOPPED, DisturbanceState.OVER
# A disturbance begins by its fault's action, and a step that makes another action is made with it.
BEGINNINGS = {
    FaultKind.KILL: (OVER, FaultAction.KILL),
    FaultKind.STOP: (STOPPED, FaultAction.STOP),
    FaultKind.SLOW: (STOPPED, FaultAction.STOP),
    FaultKind.CUT: (RUNNING, FaultAction.CUT),
    FaultKind.STALL: (RUNNING, FaultAction.STALL),
}
UNDOING = {FaultKind.CUT: FaultAction.MEND, FaultKind.STALL: FaultAction.RELEASE}
TRANSITIONS: dict[DisturbanceState, frozenset[DisturbanceState]] = {
    RUNNING: frozenset({STOPPED, OVER}),
    STOPPED: frozenset({RUNNING, OVER}),
    OVER: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A fault of the process of a rank of a worker. `life` is when that process was started, `until` when the fault
    ends, `turn_ends` when a slowed one stops or goes on."""

    fault: FaultKind
    worker: str
    rank: int
    life: float
    until: float
    state: DisturbanceState
    turn_ends: float | None = None

    @property
    def is_over(self) -> bool:
        return self.state is OVER

    @property
    def due(self) -> float:
        """The time of the next step, if nothing happens before."""
        return self.until if self.turn_ends is None else min(self.until, self.turn_ends)

    def moved(self, state: DisturbanceState, turn_ends: float | None = None) -> "Disturbance":
        """Return it in another state. A move that is not in the table raises AssertionError, also under `python -O`."""
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f"a disturbance cannot go from {self.state.name} to {state.name}")
        return replace(self, state=state, turn_ends=turn_ends)


Step = tuple[Disturbance, FaultAction | None]


def begin(fault: FaultKind, worker: str, rank: int, life: float, seconds: float, now: float) -> Step:
    state, action = BEGINNINGS[fault]
    turn_ends = now + STILL if fault is FaultKind.SLOW else None
    return Disturbance(fault, worker, rank, life, now + seconds, state, turn_ends), action


def advance(disturbance: Disturbance, life: float | None, is_wanted: bool, now: float) -> Step:
    """Return the next step. `life` is when the rank's process was started, None while there is none; `is_wanted` says
    that the client is there and the launch goes on."""
    if disturbance.is_over:
        return disturbance, None
    if life != disturbance.life:
        return disturbance.moved(OVER), None
    if not is_wanted or now >= disturbance.until:
        return disturbance.moved(OVER), undoing(disturbance)
    if disturbance.turn_ends is None or now < disturbance.turn_ends:
        return disturbance, None
    if disturbance.state is STOPPED:
        return disturbance.moved(RUNNING, now + RUNS), FaultAction.CONTINUE
    return disturbance.moved(STOPPED, now + STILL), FaultAction.STOP


def undoing(disturbance: Disturbance) -> FaultAction | None:
    """Return the action that leaves the process as it was. One that runs needs none, unless its links are disturbed."""
    if disturbance.state is STOPPED:
        return FaultAction.CONTINUE
    return UNDOING.get(disturbance.fault)
