# SPDX-License-Identifier: Apache-2.0
"""Workers as a change of a launch sees them, which exit at any time, or never end."""

from dataclasses import dataclass, field, replace

from pontil.launcher.child.child_state import ChildState, DrainState
from pontil.launcher.supervisor.rollouts.rollout import Rollout, RolloutPhase, advance
from pontil.launcher.supervisor.rollouts.rollout_step import (
    ActionKind,
    RolloutGoal,
    RolloutLimits,
    WorkerAction,
    WorkerSnapshot,
)

GATE = 30.0
LIMITS = RolloutLimits(drain=5.0, start=20.0, gate=GATE)


def row(
    name: str, state: ChildState = ChildState.READY, drain_state: DrainState = DrainState.WORKING
) -> WorkerSnapshot:
    return WorkerSnapshot(name, state, drain_state)


@dataclass
class RolloutWorld:
    """Workers as a supervisor sees them. `starts` counts processes: a RENEWED worker must have another one. The
    `verdicts` are those on gated workers, where they come. Models are `asleep`, or new workers need room, if not None.
    The change has `taken` some workers out of service."""

    places: dict[str, WorkerSnapshot]
    change: Rollout
    now: float = 0.0
    starts: dict[str, int] = field(default_factory=dict)
    told: list[tuple[ActionKind, str]] = field(default_factory=list)
    verdicts: dict[str, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    asleep: bool | None = None

    def serving(self, but: str) -> int:
        return sum(place.serves for name, place in self.places.items() if name != but)

    def put(self, name: str, **fields: object) -> None:
        self.places[name] = replace(self.places[name], **fields)  # type: ignore[arg-type]

    def decide(self) -> None:
        for _ in range(20):
            move = None if self.change.is_over else advance(self.change, self.places, self.now)
            if move is None:
                return
            self.change, actions = move
            for action in actions:
                self.check(action)
                self.act(action)
        raise AssertionError(f"{self.change} goes round in a circle")

    def check(self, action: WorkerAction) -> None:
        """Check that no worker is taken out of service while too few others serve, and that the action is possible."""
        name, place = action.step.name, self.places.get(action.step.name)
        self.told.append((action.verb, name))
        if action.verb is ActionKind.ADD:
            assert place is None
            return
        assert place is not None
        takes = action.verb is ActionKind.DRAIN and place.serves
        if action.verb is ActionKind.DRAIN and place.drain_state is DrainState.WORKING:
            self.taken.add(name)
        takes |= action.verb is ActionKind.STOP and place.state is ChildState.READY and name in self.taken
        has_way_back = name in self.taken or self.change.phase is RolloutPhase.TELL
        assert action.verb is not ActionKind.ASSIGN or has_way_back, "it was out of service before"
        assert not takes or self.serving(but=name) >= self.change.minimum, f"{action.verb} {name} leaves too few"
        assert action.verb not in (ActionKind.RENEW, ActionKind.REMOVE) or not place.state.alive

    def act(self, action: WorkerAction) -> None:
        name = action.step.name
        match action.verb:
            case ActionKind.DRAIN if action.step.aim is RolloutGoal.RELIEVED:
                self.put(name, state=ChildState.DRAINING)
            case ActionKind.DRAIN:
                self.put(name, drain_state=DrainState.DRAINING, obeys=False)
            case ActionKind.ASSIGN:
                self.put(name, drain_state=DrainState.WORKING, obeys=False)
            case ActionKind.TRY:
                assert self.places[name].drain_state is DrainState.DRAINED, "it serves while it is tried"
                self.change = replace(self.change, verdict=self.verdicts.get(name))
            case ActionKind.STOP | ActionKind.KILL if self.places[name].state.alive:
                asked = ChildState.DRAINING if action.verb is ActionKind.STOP else ChildState.KILLED
                self.put(name, state=asked)
            case ActionKind.RENEW:
                is_drained = self.change.limits.drained_from_its_start(action.step) is not None
                drain_state = DrainState.DRAINING if is_drained else DrainState.WORKING
                self.places[name] = WorkerSnapshot(
                    name, ChildState.BACKOFF, drain_state, obeys=drain_state is DrainState.WORKING
                )
            case ActionKind.ADD:
                drain_state = DrainState.DRAINING if action.step.gated else DrainState.WORKING
                state = ChildState.BACKOFF if self.asleep is None else ChildState.ASLEEP
                waits = self.asleep is False
                self.places[name] = replace(row(name, state, drain_state), obeys=not action.step.gated, waits=waits)
            case ActionKind.REMOVE:
                del self.places[name]

    def happen(self, name: str, luck: int) -> None:
        """Let one worker do something chosen by `luck`: 0 is an exit, 1 nothing, the rest is progress."""
        place = self.places[name]
        if luck == 1 or place.state is ChildState.GIVEN_UP:
            return
        if luck == 0 and place.state.alive:
            asked = place.state in (ChildState.DRAINING, ChildState.KILLED)
            works, state = place.drain_state is DrainState.WORKING, ChildState.EXITED if asked else ChildState.BACKOFF
            drain_state = DrainState.WORKING if works else DrainState.DRAINING
            self.put(name, state=state, exits=place.exits + 1, drain_state=drain_state, obeys=works)
        elif luck == 0 and place.exits > 2:
            self.put(name, state=ChildState.GIVEN_UP)
        elif place.waits:
            self.put(name, waits=False, state=ChildState.ASLEEP if self.asleep else ChildState.BACKOFF)
        elif place.state is ChildState.BACKOFF:
            self.starts[name] = self.starts.get(name, 0) + 1
            self.put(name, state=ChildState.STARTING)
        elif place.state is ChildState.STARTING:
            self.put(name, state=ChildState.READY)
        elif place.state is ChildState.READY:
            works = place.drain_state is DrainState.WORKING
            self.put(name, obeys=True, drain_state=DrainState.WORKING if works else DrainState.DRAINED)
