# SPDX-License-Identifier: Apache-2.0
"""A change of a running launch as a pure state machine: workers drain, restart, are added and removed, and proxies
restart, step by step.

It performs no action and never waits: `advance` reads the table of workers, or of proxies, and returns the next
actions, if any. One is taken out of service only while the others serve. If one of them exits meanwhile, a draining
worker serves again and waits for its turn; a proxy that drains cannot turn back. Every phase has a deadline and repeats
only a limited number of times, so every change ends. A worker that is gated stays drained until the verdict on it:
nothing is sent to it but what tries it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from pontil.launcher.child.child_state import ChildState, DrainState
from pontil.launcher.supervisor.rollouts.rollout_step import (
    ActionKind,
    RolloutGoal,
    RolloutLimits,
    RolloutStep,
    WorkerAction,
    WorkerSnapshot,
)

# Seconds beyond the drain timeout: for returning the remaining requests, and for KV transfers to end.
DRAIN_MARGIN = 35.0
STOP_GRACE = 10.0
# Seconds beyond its drain timeout in which a proxy has to end.
PROXY_MARGIN = 7.0
KILL_GRACE = 5.0
TELL_TIMEOUT = 10.0
# Seconds beyond those for its trial in which the verdict on a worker has to come.
VERDICT_MARGIN = 10.0
# Times that a draining worker may return to service because another one exited.
MOST_RETREATS = 3


class RolloutPhase(Enum):
    """The phase of a step: waiting until the others can do without the worker, draining it, or the same of one that was
    out of service before, ending it, waiting for room in the memory of models, for it to be ready, for it to confirm
    its order, removing a worker that did not come up; and where it is gated, waiting until it is drained, and for the
    verdict on it."""

    TURN = "turn"
    DRAIN = "drain"
    REST = "rest"
    STOP = "stop"
    KILL = "kill"
    ROOM = "room"
    START = "start"
    TELL = "tell"
    UNDO = "undo"
    HOLD = "hold"
    TRIAL = "trial"


@dataclass(frozen=True, slots=True)
class Rollout:
    """The steps that are left, the first of them under way since `since`. At least `minimum` other workers must serve
    while one is taken out of service. The `verdict` on a gated worker is empty if it is good, else a reason; a
    `refusal` is why a worker is removed."""

    steps: tuple[RolloutStep, ...]
    minimum: int
    limits: RolloutLimits
    phase: RolloutPhase | None = None
    since: float = 0.0
    retreats: int = 0
    failure: str | None = None
    verdict: str | None = None
    refusal: str | None = None

    @property
    def is_over(self) -> bool:
        return self.failure is not None or not self.steps

    def to(self, phase: RolloutPhase, now: float) -> "Rollout":
        return replace(self, phase=phase, since=now)

    def done(self) -> "Rollout":
        """Drop the first step, which is done."""
        return replace(self, steps=self.steps[1:], phase=None, retreats=0, verdict=None)

    def fail(self, reason: str) -> "Rollout":
        names = [step.name for step in self.steps[1:]]
        note = f"; {', '.join(names)} {'is' if len(names) == 1 else 'are'} left as before" if names else ""
        return replace(self, failure=reason + note)


WorkerSnapshots = Mapping[str, WorkerSnapshot]
Move = tuple[Rollout, tuple[WorkerAction, ...]]


@dataclass(frozen=True, slots=True)
class RolloutView:
    """The input from which a phase decides."""

    change: Rollout
    place: WorkerSnapshot
    others: tuple[WorkerSnapshot, ...]
    now: float

    @property
    def limits(self) -> RolloutLimits:
        return self.change.limits

    @property
    def step(self) -> RolloutStep:
        return self.change.steps[0]

    @property
    def name(self) -> str:
        return self.step.name

    @property
    def goes(self) -> bool:
        """Return whether the process is to end."""
        return self.step.aim is not RolloutGoal.DRAINED

    @property
    def is_of_proxy(self) -> bool:
        return self.step.aim is RolloutGoal.RELIEVED

    def late(self, limit: float) -> bool:
        return self.now - self.change.since >= limit

    def go(self, phase: RolloutPhase, *actions: WorkerAction) -> Move:
        return self.change.to(phase, self.now), actions

    def done(self, text: str, verb: ActionKind = ActionKind.SAY) -> Move:
        return self.change.done(), (self.act(verb, text),)

    def fail(self, reason: str, *actions: WorkerAction) -> Move:
        return self.change.fail(reason), actions

    def act(self, verb: ActionKind, text: str = "") -> WorkerAction:
        return WorkerAction(verb, self.step, text)


def advance(change: Rollout, table: WorkerSnapshots, now: float) -> Move | None:
    """Return the next move of a change that is not over, to be carried out before the next call; None if there is
    nothing to do yet."""
    step = change.steps[0]
    other_workers = tuple(place for place in table.values() if place.name != step.name)
    view = RolloutView(change, table.get(step.name, WorkerSnapshot(step.name, ChildState.BACKOFF)), other_workers, now)
    return begin(view) if change.phase is None else PHASES[change.phase](view)


def begin(view: RolloutView) -> Move:
    if view.step.aim is RolloutGoal.WORKING and view.step.gated:
        if view.place.serves:
            return view.fail(f"{view.name} serves already: drain it first, or restart it")
        return view.go(RolloutPhase.HOLD)
    if view.step.aim is RolloutGoal.WORKING:
        return view.go(RolloutPhase.TELL, view.act(ActionKind.ASSIGN))
    if view.step.aim is RolloutGoal.THERE:
        return view.go(RolloutPhase.START, view.act(ActionKind.ADD, f"{view.name} is starting"))
    return view.go(RolloutPhase.TURN)


def turn(view: RolloutView) -> Move | None:
    """Wait for the other workers. A worker that does not serve may end at once."""
    expected_workers = [place for place in view.others if place.counts]
    missing = [place.name for place in expected_workers if not place.serves]
    rests = view.place.drain_state is not DrainState.WORKING
    is_needed = not rests and (view.place.serves or not view.goes)
    if is_needed and len(expected_workers) < view.change.minimum:
        return view.fail(f"nobody else is left to serve while {view.name} does not")
    if is_needed and missing:
        late = view.late(view.limits.start)
        reason = f"{', '.join(missing)} did not come to serve within {view.limits.start:g} s, so {view.name} goes on"
        return view.fail(reason) if late else None
    if view.goes and view.place.state is not ChildState.READY:
        return view.go(RolloutPhase.STOP, view.act(ActionKind.STOP))
    if view.is_of_proxy:
        return view.go(RolloutPhase.STOP, view.act(ActionKind.DRAIN, f"{view.name} drains"))
    message = f"{view.name} takes no new requests; those it has are moved after {view.limits.drain:g} s"
    return view.go(RolloutPhase.REST if rests else RolloutPhase.DRAIN, view.act(ActionKind.DRAIN, message))


def drain(view: RolloutView) -> Move | None:
    is_there = not view.goes or view.place.state is ChildState.READY
    if is_there and sum(place.serves for place in view.others) < view.change.minimum:
        return retreat(view)
    return rest(view)


def rest(view: RolloutView) -> Move | None:
    """Wait until the worker is drained. One that was out of service before stays so, whatever becomes of the others."""
    if view.goes and view.place.state is not ChildState.READY:
        return view.go(RolloutPhase.STOP, view.act(ActionKind.STOP))
    late = view.late(view.limits.drain + DRAIN_MARGIN)
    if view.place.state is ChildState.READY and view.place.drain_state is DrainState.DRAINED:
        if not view.goes:
            return view.done(f"{view.name} is drained; `pontil undrain {view.name}` brings it back")
        return view.go(RolloutPhase.STOP, view.act(ActionKind.STOP, f"{view.name} is drained and ends"))
    if late and view.goes:
        return view.go(RolloutPhase.STOP, view.act(ActionKind.STOP, f"{view.name} has not drained in time and ends"))
    if late and view.change.phase is RolloutPhase.REST:
        return view.fail(f"{view.name} has not drained in time")
    if late:
        return view.fail(f"{view.name} has not drained in time, and works again", view.act(ActionKind.ASSIGN))
    return None


def retreat(view: RolloutView) -> Move:
    """Put the draining worker back into service, since another one exited."""
    change = replace(view.change.to(RolloutPhase.TURN, view.now), retreats=view.change.retreats + 1)
    works = view.act(ActionKind.ASSIGN, f"{view.name} works again, as others do not")
    if change.retreats > MOST_RETREATS:
        return change.fail(f"the other workers keep dying, so {view.name} goes on"), (works,)
    return change, (works,)


def stop(view: RolloutView) -> Move | None:
    """Wait for the process to end, whether it was asked to or exited by itself."""
    if not view.place.state.alive:
        return ended(view)
    grace = view.limits.drain + PROXY_MARGIN if view.is_of_proxy else STOP_GRACE
    return view.go(RolloutPhase.KILL, view.act(ActionKind.KILL)) if view.late(grace) else None


def kill(view: RolloutView) -> Move | None:
    if not view.place.state.alive:
        return ended(view)
    return view.fail(f"{view.name} cannot be killed: the kernel holds it") if view.late(KILL_GRACE) else None


def ended(view: RolloutView) -> Move:
    if view.step.aim is RolloutGoal.GONE:
        return view.done(f"{view.name} is gone", ActionKind.REMOVE)
    text = "" if view.is_of_proxy else f"{view.name} is starting"
    return view.go(RolloutPhase.START, view.act(ActionKind.RENEW, text))


def start(view: RolloutView) -> Move | None:
    joins, place = view.step.aim is RolloutGoal.THERE, view.place
    if place.state is ChildState.READY and (place.obeys or place.drain_state is DrainState.WORKING):
        if view.is_of_proxy:
            return view.done(f"{view.name} serves again")
        if view.step.gated:
            return tried(view)
        rests = " and drained" if place.drain_state is DrainState.DRAINED else ""
        return view.done(f"{view.name} is ready{rests} after {view.now - view.change.since:.1f} s")
    if joins and place.state is ChildState.ASLEEP:
        return resting(view)
    if joins and place.exits:
        return view.go(RolloutPhase.UNDO, view.act(ActionKind.KILL))
    if place.state is ChildState.GIVEN_UP:
        return view.fail(f"{view.name} is given up: see its last lines in the launcher's log")
    if not view.late(view.limits.start):
        return None
    if joins:
        return view.go(RolloutPhase.UNDO, view.act(ActionKind.KILL))
    return view.fail(f"{view.name} was not ready within {view.limits.start:g} s: see the launcher's log")


def resting(view: RolloutView) -> Move:
    """Have a new worker wait for room, unless its model sleeps: it does so too then."""
    if view.place.waits:
        return view.go(RolloutPhase.ROOM, view.act(ActionKind.SAY, f"{view.name} waits until other models have left"))
    if view.step.gated:
        return refuse(view, "its model sleeps, so it cannot be tried: have it answer a request first")
    return view.done(f"{view.name} sleeps, as its model does")


def room(view: RolloutView) -> Move | None:
    if not view.place.waits:
        return view.go(RolloutPhase.START)
    late = view.late(view.limits.start)
    return refuse(view, f"other models left no room for it within {view.limits.start:g} s") if late else None


def undo(view: RolloutView) -> Move | None:
    """Remove a worker that did not start, with no trace left."""
    if view.place.state.alive:
        return view.fail(f"{view.name} cannot be killed: the kernel holds it") if view.late(KILL_GRACE) else None
    reason = view.change.refusal or f"{view.name} did not start: see its last lines in the launcher's log"
    return view.fail(reason, view.act(ActionKind.REMOVE))


def hold(view: RolloutView) -> Move | None:
    """Wait until the worker is drained: ready, and without a request."""
    if view.place.state is ChildState.READY and view.place.drain_state is DrainState.DRAINED:
        return tried(view)
    if view.place.state is ChildState.GIVEN_UP:
        return view.fail(f"{view.name} is given up: `pontil restart {view.name}` starts it again")
    return view.fail(f"{view.name} was not drained in time") if view.late(view.limits.start) else None


def tried(view: RolloutView) -> Move:
    return view.go(RolloutPhase.TRIAL, view.act(ActionKind.TRY, f"{view.name} is drained, and tried"))


def trial(view: RolloutView) -> Move | None:
    """Wait for the verdict on a drained worker."""
    verdict = view.change.verdict
    if view.place.state is not ChildState.READY:
        return refuse(view, "its process ended while it was tried")
    if verdict is None:
        limit = view.limits.gate or 0.0
        late = view.late(limit + VERDICT_MARGIN)
        return refuse(view, f"its trial did not end within {limit:g} s") if late else None
    if verdict:
        return refuse(view, verdict)
    return view.go(RolloutPhase.TELL, view.act(ActionKind.ASSIGN, f"{view.name} answers as recorded"))


def refuse(view: RolloutView, reason: str) -> Move:
    """End the change with a worker that does not serve: a new one is removed, any other one stays drained."""
    refusal = f"{view.name} is refused: {reason}"
    if view.step.aim is not RolloutGoal.THERE:
        return view.fail(f"{refusal}; it stays drained")
    change = replace(view.change.to(RolloutPhase.UNDO, view.now), refusal=refusal)
    return change, (view.act(ActionKind.KILL),)


def tell(view: RolloutView) -> Move | None:
    """Wait until the worker has confirmed its order. One that is not ready gets the order when it is."""
    role = f" for {view.step.role}" if view.step.role else ""
    if view.place.state is ChildState.GIVEN_UP:
        return view.fail(f"{view.name} is given up: `pontil restart {view.name}` starts it again")
    if view.place.state is not ChildState.READY:
        return view.done(f"{view.name} works{role} as soon as it is ready")
    if view.place.obeys:
        return view.done(f"{view.name} works{role}, told in {1e3 * (view.now - view.change.since):.0f} ms")
    return view.fail(f"{view.name} did not hear of it in time") if view.late(TELL_TIMEOUT) else None


PHASES: Mapping[RolloutPhase, Callable[[RolloutView], Move | None]] = {
    RolloutPhase.TURN: turn,
    RolloutPhase.DRAIN: drain,
    RolloutPhase.REST: rest,
    RolloutPhase.STOP: stop,
    RolloutPhase.KILL: kill,
    RolloutPhase.ROOM: room,
    RolloutPhase.START: start,
    RolloutPhase.TELL: tell,
    RolloutPhase.UNDO: undo,
    RolloutPhase.HOLD: hold,
    RolloutPhase.TRIAL: trial,
}
