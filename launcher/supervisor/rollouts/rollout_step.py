# SPDX-License-Identifier: Apache-2.0
"""The steps of a rollout: what each is to reach, the workers that it sees, and the actions that it has done."""

from dataclasses import dataclass
from enum import Enum

from pontil.launcher.child.child_state import ChildState, DrainState
from pontil.launcher.plan.child_plan import ChildPlan


class RolloutGoal(Enum):
    """The goal of a step for one worker: it has no requests, it serves, it is a new process, it is removed, it is
    added; or for one proxy: it ends by itself once drained, and another process is in its place."""

    DRAINED = "drained"
    WORKING = "working"
    RENEWED = "renewed"
    RELIEVED = "relieved"
    GONE = "gone"
    THERE = "there"


class ActionKind(Enum):
    """An action of the supervisor on a worker. ASSIGN puts it into service, in the step's role if that names one; RENEW
    replaces a child that has ended by a fresh one; TRY asks for the verdict on a drained one; SAY is only a message."""

    DRAIN = "drain"
    ASSIGN = "assign"
    STOP = "stop"
    KILL = "kill"
    RENEW = "renew"
    ADD = "add"
    REMOVE = "remove"
    TRY = "try"
    SAY = "say"


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """A worker or proxy at one moment. `obeys`: it has confirmed its last order. One that sleeps, and not because its
    model does, `waits` for others to leave."""

    name: str
    state: ChildState
    drain_state: DrainState = DrainState.WORKING
    obeys: bool = True
    exits: int = 0
    waits: bool = False

    @property
    def serves(self) -> bool:
        return self.state is ChildState.READY and self.drain_state is DrainState.WORKING

    @property
    def counts(self) -> bool:
        """Return whether it serves, or is to serve again; one that sleeps is not waited for."""
        resting = self.state in (ChildState.GIVEN_UP, ChildState.ASLEEP)
        return not resting and self.drain_state is DrainState.WORKING


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """One step for one worker or proxy. `role` and `plan` are for WORKING and THERE; with `rests`, a RENEWED worker is
    drained again afterwards. One that is `gated` comes to serve only by a good verdict."""

    aim: RolloutGoal
    name: str
    role: str | None = None
    plan: ChildPlan | None = None
    rests: bool = False
    gated: bool = False


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """Limits in seconds: `drain` for requests to end by themselves, `start` for a worker to be ready, `gate` for the
    trial of one that is gated."""

    drain: float
    start: float
    gate: float | None = None

    def drained_from_its_start(self, step: RolloutStep) -> float | None:
        """Return the seconds that a new process which is drained from its start has for requests; None for one that
        serves."""
        return self.drain if step.gated or step.rests else None


@dataclass(frozen=True, slots=True)
class WorkerAction:
    """One action for the supervisor; `text` is for people."""

    verb: ActionKind
    step: RolloutStep
    text: str = ""
