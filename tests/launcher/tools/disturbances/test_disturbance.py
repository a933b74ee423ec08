# SPDX-License-Identifier: Apache-2.0
"""The state machine of a disturbance: whatever happens first, no process is left stopped and no link cut."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.launcher.tools.disturbances.disturbance import (
    BEGINNINGS,
    RUNS,
    STILL,
    TRANSITIONS,
    Disturbance,
    DisturbanceState,
    FaultAction,
    FaultKind,
    advance,
    begin,
)

# Seconds that pass, the process's death (with or without another one after it), or the client's end.
EVENTS = st.one_of(st.floats(0.0, 3.0), st.sampled_from(["dies", "is replaced", "client leaves"]))


@dataclass
class ScriptedProcess:
    """A process of a worker, as the actions leave it."""

    life: float
    stopped: bool = False
    cut: bool = False
    killed: bool = False

    def suffer(self, action: FaultAction | None) -> None:
        assert not (action is FaultAction.STOP and self.stopped) and not (
            action is FaultAction.CONTINUE and not self.stopped
        )
        match action:
            case FaultAction.KILL:
                self.killed = True
            case FaultAction.STOP | FaultAction.CONTINUE:
                self.stopped = action is FaultAction.STOP
            case FaultAction.CUT | FaultAction.MEND | FaultAction.STALL | FaultAction.RELEASE:
                self.cut = action in (FaultAction.CUT, FaultAction.STALL)


class DisturbedScene:
    """One disturbance under events, and every process that the worker has had."""

    def __init__(self, fault: FaultKind, seconds: float) -> None:
        self.now, self.wanted = 100.0, True
        self.processes = [ScriptedProcess(self.now)]
        self.alive: ScriptedProcess | None = self.processes[0]
        self.one, action = begin(fault, "decode:0", 0, self.now, seconds, self.now)
        self.processes[0].suffer(action)

    def happen(self, event: float | str) -> None:
        if isinstance(event, float):
            self.now += event
        elif event == "client leaves":
            self.wanted = False
        elif self.alive is not None or event == "is replaced":
            self.alive = ScriptedProcess(self.now + 0.001) if event == "is replaced" else None
            self.processes += [] if self.alive is None else [self.alive]
        self.step()

    def step(self) -> None:
        life = None if self.alive is None else self.alive.life
        self.one, action = advance(self.one, life, self.wanted, self.now)
        if action is not None:
            assert self.alive is self.processes[0], "only the process that was disturbed is acted upon"
            self.alive.suffer(action)


@given(st.sampled_from(FaultKind), st.floats(0.0, 5.0), st.lists(EVENTS, max_size=30))
def test_everything_is_undone_in_any_order_of_events(
    fault: FaultKind, seconds: float, events: list[float | str]
) -> None:
    scene = DisturbedScene(fault, seconds)
    for event in events:
        scene.happen(event)
        assert not any(one.stopped or one.cut or one.killed for one in scene.processes[1:])
        assert scene.wanted or scene.one.is_over, "it ends with its client"
    scene.now = max(scene.now, scene.one.until)
    scene.step()
    assert scene.one.is_over
    if scene.alive is not None:
        assert not scene.alive.stopped and not scene.alive.cut
    assert scene.processes[0].killed == (fault is FaultKind.KILL)


def test_a_slowed_process_runs_a_fifth_of_the_time() -> None:
    scene, ran = DisturbedScene(FaultKind.SLOW, 10.0), 0.0
    while not scene.one.is_over:
        before = scene.now
        scene.now = scene.one.due
        ran += 0.0 if scene.processes[0].stopped else scene.now - before
        scene.step()
    assert ran == pytest.approx(10.0 * RUNS / (RUNS + STILL)) and not scene.processes[0].stopped


def test_the_tables_are_whole_and_other_moves_are_refused() -> None:
    assert set(TRANSITIONS) == set(DisturbanceState) and set(BEGINNINGS) == set(FaultKind)
    over = Disturbance(FaultKind.STOP, "decode:0", 0, 1.0, 2.0, DisturbanceState.OVER)
    with pytest.raises(AssertionError, match="cannot go from OVER to STOPPED"):
        over.moved(DisturbanceState.STOPPED)
    assert advance(over, 1.0, True, 9.0) == (over, None)
