# SPDX-License-Identifier: Apache-2.0
"""A child of several processes, in every order of exits, stalls and orders. The processes are stand-ins."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.launcher.child import rank_group
from pontil.launcher.child.child import Child
from pontil.launcher.child.child_state import ChildState, DrainState
from pontil.launcher.child.exit_cause import EXIT_RANK_LOST, ExitCause
from pontil.launcher.child.health import HealthLimits, HealthSigns
from pontil.launcher.child.rank_group import MOMENT, GroupStep, next_step
from pontil.launcher.child.reports import OrderReport, ReadyReport
from pontil.launcher.child.starter import ExecStarter
from pontil.launcher.host.devices import Placement
from pontil.launcher.host.oom import OomWatch
from pontil.launcher.plan.child_plan import ChildPlan, plan_ranks
from pontil.launcher.supervisor.restart_policy import RestartPolicy

LIMITS, OOM = HealthLimits(silence=3.0), OomWatch(Path("/nowhere"))
CODES = (0, 1, EXIT_RANK_LOST, -signal.SIGKILL, -signal.SIGSEGV)
Event = tuple[Any, ...]


class FakeProcess:
    """A process of the world below. It ends as the test tells it, at SIGKILL, and, unless `deaf`, at SIGTERM."""

    def __init__(self, world: "World", plan: ChildPlan, now: float) -> None:
        self.world, self.plan, self.name, self.process = world, plan, plan.name, self
        self.pid = len(world.processes)
        self.incarnation = world.child.starts
        self.signs = HealthSigns(started_at=now, last_beat=now)
        self.ready: ReadyReport | None = None
        self.ended: ExitCause | None = None
        self.complaint = self.failure = self.progress = None
        self.killed = self.stalled = False
        self.code: int | None = None
        self.terms = 0
        self.told: list[dict[str, Any]] = []

    def hear(self, lines: Sequence[bytes], now: float) -> list[Any]:
        """Report what each line says to be settled, whether it is drained."""
        return [OrderReport(self.told[-1]["order"], line == b"drained") for line in lines]

    def send(self, message: dict[str, Any]) -> None:
        assert self.ended is None
        self.told.append(message)

    def observe(self, now: float) -> None:
        """Stalled ones do not compute either."""

    def has_ended(self) -> bool:
        return self.code is not None

    def signal(self, number: signal.Signals) -> None:
        if number == signal.SIGTERM:
            driver, is_worker = self.world.driver_of(self), self.plan.is_data_parallel
            assert self is driver or driver.code is not None or is_worker, "a follower ends after its driver"
            self.terms += 1
        if number == signal.SIGKILL or not (self.world.deaf or self.stalled):
            self.exit(-signal.SIGKILL if number == signal.SIGKILL else 0)

    def exit(self, code: int) -> None:
        if self.code is None:
            self.code = code
            self.signs = replace(self.signs, closed_at=self.world.tick())

    def kill(self) -> None:
        self.killed = True
        self.signal(signal.SIGKILL)

    def conclude(self, now: float, oom: OomWatch) -> None:
        assert self.code is not None and self.ended is None
        follower = self.name if self.plan.is_follower else None
        self.ended = ExitCause(now, self.code, complaint=self.complaint, follower=follower)


class World:
    """A child, its processes of all incarnations, and the part of the supervisor's loop that is about it."""

    def __init__(self, ranks: int, deaf: bool = False, data_parallel: bool = False) -> None:
        config = {"data_parallel_size": ranks} if data_parallel else {}
        plan = plan_ranks("decode:0", "decode", [Placement("cpu", (0,))] * ranks, config, "ipc:///nowhere/ranks")
        self.child = Child(plan, ExecStarter((), lambda threads: {}))
        self.deaf, self.now = deaf, 0.0
        self.processes: list[FakeProcess] = []
        self.policy = RestartPolicy(attempts=1000, window=1.0)
        self.look()

    @contextmanager
    def spawning(self) -> Iterator[None]:
        def spawn(plan: ChildPlan, starter: object, now: float, kept: object) -> FakeProcess:
            self.processes.append(FakeProcess(self, plan, now))
            return self.processes[-1]

        with patch.object(rank_group, "ChildProcess", spawn):
            yield

    def tick(self) -> float:
        self.now += 1e-3
        return self.now

    def driver_of(self, process: FakeProcess) -> FakeProcess:
        return next(one for one in self.processes if one.incarnation == process.incarnation)

    @property
    def living(self) -> list[FakeProcess]:
        return [process for process in self.processes if process.code is None]

    @property
    def current(self) -> list[Any]:
        return list(self.child.group.processes) if self.child.group else []

    def look(self) -> None:
        """Do what the supervisor does in each round."""
        child, now = self.child, self.tick()
        for process in list(child.processes):
            if process.has_ended():
                child.record_end(process, now, OOM)
        if child.group is not None and child.group.is_ending:
            child.settle_ends(now)
        elif child.judge(LIMITS, now):
            child.kill()
        if child.state is ChildState.EXITED and not child.dismissed:
            child.wait_or_give_up(self.policy.delay([one.at for one in child.exits], now), now)
        if child.is_due(now):
            with self.spawning():
                child.start(now)
        self.check()

    def check(self) -> None:
        child = self.child
        assert (child.group is not None) == child.alive
        assert set(self.living) <= set(self.current), "a process outlived its incarnation"
        assert len(child.exits) == child.starts - child.alive, "one exit for each incarnation"
        if child.state is ChildState.READY:
            assert all(one.ready and one.ended is None for one in self.current)

    def happen(self, event: Event) -> None:
        match event:
            case ("exit", rank, code) if rank < len(self.current):
                self.current[rank].exit(code)
            case ("stall", rank) if rank < len(self.current):
                self.current[rank].stalled = True
            case ("ready", rank) if rank < len(self.current) and self.current[rank].code is None:
                self.current[rank].ready = ReadyReport({})
                self.child.hear(self.current[rank], (), self.now)
            case ("stop",) if self.child.alive:
                self.child.stop()
            case ("kill",) if self.child.alive:
                self.child.kill()
            case ("order",):
                self.child.assign("mixed", None)
            case ("wait", seconds):
                self.wait(seconds)

    def wait(self, seconds: float) -> None:
        """Pass time, in which those that are not stalled send heartbeats."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.5
            for process in self.living:
                if not process.stalled:
                    process.signs = replace(process.signs, last_beat=self.now)
            self.look()


RANKS = st.integers(0, 2)
EVENTS = st.one_of(
    st.tuples(st.just("exit"), RANKS, st.sampled_from(CODES)), st.tuples(st.just("stall"), RANKS),
    st.tuples(st.just("ready"), RANKS), st.tuples(st.sampled_from(["stop", "kill", "order", "look"])),
    st.tuples(st.just("wait"), st.sampled_from([0.1, MOMENT, 4.0])),
)  # fmt: skip


@given(st.integers(1, 3), st.integers(0, 3), st.booleans(), st.booleans(), st.lists(EVENTS, max_size=30))
def test_every_order_of_events_leaves_no_process_and_one_restart(
    ranks: int, ready: int, deaf: bool, data_parallel: bool, events: list[Event]
) -> None:
    world = World(ranks, deaf, data_parallel)
    for event in [*(("ready", rank) for rank in range(ready)), *events]:
        world.happen(event)
        if event == ("look",):
            world.look()
    # Those that ended take all others with them, and a new start is whole.
    world.wait(MOMENT + 65)
    for rank in range(ranks):
        world.happen(("ready", rank))
    world.look()
    whole = [one.code for one in world.current] == [None] * ranks
    assert whole or world.child.state in (ChildState.DRAINING, ChildState.BACKOFF)
    world.child.dismissed = True
    world.happen(("kill",))
    world.look()
    assert not world.living and not world.child.alive


@given(st.permutations([0, 1, 2]), st.sampled_from([1, -signal.SIGKILL, -signal.SIGSEGV]), st.booleans())
def test_the_cause_is_the_rank_that_ended_for_a_reason_of_its_own(order: list[int], code: int, at_once: bool) -> None:
    """The others end because of it, before or after it, and some are killed."""
    world, guilty = World(3), order[0]
    for rank in sorted(order, key=lambda rank: (order.index(rank) + 1) % 3) if at_once else order:
        world.happen(("exit", rank, code if rank == guilty else EXIT_RANK_LOST))
        if not at_once:
            world.look()
    world.wait(1.0)
    cause = world.child.exits[-1]
    assert (cause.follower, cause.code) == (f"decode:0+{guilty}" if guilty else None, code)


def test_a_worker_one_of_whose_ranks_has_ended_is_not_ready() -> None:
    world = World(2)
    for event in (("ready", 0), ("exit", 0, EXIT_RANK_LOST)):
        world.happen(event)
    world.look()
    world.happen(("ready", 1))
    assert world.child.state is ChildState.STARTING
    world = World(2)
    for event in (("ready", 0), ("ready", 1), ("exit", 1, EXIT_RANK_LOST)):
        world.happen(event)
    before = world.child.state
    world.look()
    assert (before, world.child.state) == (ChildState.READY, ChildState.STALE) and world.living


def test_a_rank_that_lost_another_waits_for_its_word() -> None:
    world = World(2)
    world.happen(("exit", 0, EXIT_RANK_LOST))
    world.look()
    assert world.child.alive and world.living
    world.happen(("exit", 1, 1))
    world.look()
    assert world.child.exits[-1].follower == "decode:0+1"


def test_a_follower_that_leaves_first_gives_its_driver_a_moment() -> None:
    world = World(2, deaf=True)
    for event in (("ready", 0), ("ready", 1), ("stop",), ("exit", 1, 0)):
        world.happen(event)
    world.look()
    assert [one.code for one in world.current] == [None, 0] and world.child.state is ChildState.DRAINING
    world.happen(("exit", 0, 0))
    world.look()
    assert world.child.exits[-1].code == 0 and not any(one.killed for one in world.processes[:2])


def test_followers_are_asked_to_end_and_then_killed_once_their_driver_has_ended() -> None:
    world = World(3, deaf=True)
    for rank in range(3):
        world.happen(("ready", rank))
    driver, *followers = world.processes
    world.happen(("stop",))
    assert (driver.terms, [one.terms for one in followers]) == (1, [0, 0])
    world.happen(("exit", 0, 0))
    world.look()
    assert [one.terms for one in followers] == [1, 1] and not any(one.killed for one in followers)
    world.wait(MOMENT + 0.5)
    assert all(one.killed for one in followers) and world.child.exits[-1].follower is None


def test_data_parallel_ranks_are_workers_that_get_all_orders() -> None:
    world = World(2, data_parallel=True)
    for rank in range(2):
        world.happen(("ready", rank))
    child, (first, second) = world.child, world.current
    child.assign("decode", 5.0)
    order = {"kind": "role", "order": 1, "role": "decode", "drain": 5.0, "for_good": False, "sleeps": False}
    assert first.told == second.told == [order]
    child.hear(first, [b"drained"], world.now)
    assert (child.obeys, child.drain_state) == (False, DrainState.DRAINING)
    child.hear(second, [b"working"], world.now)
    assert (child.obeys, child.drain_state) == (True, DrainState.DRAINING)
    child.hear(second, [b"drained"], world.now)
    assert child.drain_state is DrainState.DRAINED
    child.stop()
    assert (first.terms, second.terms) == (1, 1)
    world.look()
    assert list(child.ended_pids) == [(first.pid, second.pid)] and child.exits[-1].code == 0


def test_a_stalled_rank_is_the_cause_and_all_are_killed() -> None:
    world = World(3)
    for rank in range(3):
        world.happen(("ready", rank))
    world.happen(("stall", 2))
    world.wait(4.0)
    assert "sent no heartbeat" in world.child.exits[-1].words and world.child.exits[-1].follower == "decode:0+2"
    assert all(one.killed for one in world.processes[:3]) and world.child.starts == 2


def test_without_room_for_all_ranks_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(3)
    world.happen(("exit", 0, 1))
    world.look()
    world.look()
    started = len(world.processes)

    def spawn(plan: ChildPlan, starter: object, now: float, kept: object) -> FakeProcess:
        if plan.is_follower:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        world.processes.append(FakeProcess(world, plan, now))
        return world.processes[-1]

    monkeypatch.setattr(rank_group, "ChildProcess", spawn)
    world.child.start(world.child.due)
    assert len(world.processes) == started + 1 and world.child.state is ChildState.KILLED
    world.happen(("wait", 0.1))
    assert "no room for all of its ranks" in world.child.exits[1].words


@pytest.mark.parametrize(
    ("codes", "step"),
    [
        ((None, None), GroupStep.NOTHING),
        ((0, None), GroupStep.WAIT),
        ((None, EXIT_RANK_LOST), GroupStep.WAIT),
        ((None, 1), GroupStep.KILL),
        ((EXIT_RANK_LOST, None, -9), GroupStep.KILL),
        ((0, 0), GroupStep.RECORD),
        ((3,), GroupStep.RECORD),
    ],
)
def test_the_next_step_follows_from_how_the_ranks_ended(codes: tuple[int | None, ...], step: GroupStep) -> None:
    assert next_step([None if code is None else ExitCause(0.0, code) for code in codes]) is step
