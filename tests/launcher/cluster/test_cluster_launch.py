# SPDX-License-Identifier: Apache-2.0
"""The loop of a launch on a cluster, over a scripted cluster and a clock that is moved by hand."""

import io
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
from effort import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pontil.launcher.cluster.cluster_launch import END_WITHIN, ClusterLaunch
from pontil.launcher.cluster.cluster_plan import ClusterNode, PlacedWorker, plan_cluster
from pontil.launcher.cluster.slots import SLOT_MOVES, ActorEnded, ActorPlaced, SlotState
from pontil.launcher.foundation.errors import LaunchError, RefusedError
from pontil.launcher.logs.console import Console
from pontil.launcher.options.options import read_options

NODES = [ClusterNode(f"node-{number}", f"10.0.0.{number}", (0, 1, 2, 3)) for number in range(3)]
KEYS = "pontil-keys-1 secret\n"


class ScriptedCluster:
    """A cluster that notes what it is asked for; a test puts its events in."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        self.events: list[ActorPlaced | ActorEnded] = []
        self.said: list[tuple[Any, ...]] = []
        self.actors: dict[int, int] = {}
        self.closed: float | None = None

    def fileno(self) -> int:
        return self.reading

    def reserve(self, workers: Sequence[PlacedWorker]) -> None:
        self.said.append(("reserve", [one.name for one in workers]))

    def start(self, slot: int, attempt: int, worker: PlacedWorker) -> None:
        assert slot not in self.actors, "one actor at a time in a bundle"
        self.actors[slot] = attempt

    def run(self, slot: int, attempt: int, words: Sequence[str], keys: str | None) -> None:
        assert self.actors[slot] == attempt
        self.said.append(("run", slot, list(words), keys))

    def put(self, *events: ActorPlaced | ActorEnded) -> None:
        self.events += events
        os.write(self.writing, b"!")

    def take(self) -> list[ActorPlaced | ActorEnded]:
        with suppress(BlockingIOError):
            os.read(self.reading, 4096)
        found, self.events = self.events, []
        return found

    def discard(self, slot: int) -> None:
        del self.actors[slot]

    def close(self, within: float) -> None:
        self.closed = within
        self.actors.clear()

    def resources(self) -> str:
        return "3 nodes with CPU 2 and GPU 0"


class ScriptedProxyLaunch:
    """The proxy's launch as the loop sees it: it ends with a code when it is told to by a signal."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.cluster = cluster
        self.told: list[int] = []
        self.ended: int | None = None

    def signal(self, number: int) -> None:
        self.told.append(number)
        self.ended = 0 if number == signal.SIGTERM else 130

    def wait(self) -> int:
        assert self.ended is not None
        return self.ended


class LoopWorld:
    """A loop, its cluster, its proxy and its clock."""

    def __init__(self, **flags: Any) -> None:
        self.now = 0.0
        self.cluster, self.out = ScriptedCluster(), io.StringIO()
        self.proxy = ScriptedProxyLaunch(self.cluster)
        made: Any = lambda: self.proxy  # noqa: E731
        options = read_options({"on": "ray", "prefill": "cpu", "decode": "cpu:0-1,cpu:0-1", **flags})
        self.launch = ClusterLaunch(
            plan_cluster(options), self.cluster, "tcp://10.0.0.9:7000", KEYS, Console(self.out), made, lambda: self.now
        )

    def advance(self, seconds: float = 0.0, *events: ActorPlaced | ActorEnded) -> None:
        self.now += seconds
        self.cluster.put(*events)
        self.launch.advance(self.now)

    @property
    def states(self) -> list[SlotState]:
        return [slot.state for slot in self.launch.slots]

    def close(self) -> None:
        os.close(self.cluster.reading)
        os.close(self.cluster.writing)


@pytest.fixture
def world() -> Iterator[LoopWorld]:
    made = LoopWorld()
    yield made
    made.close()


def test_each_worker_runs_where_its_bundle_is(world: LoopWorld) -> None:
    world.advance()
    assert world.states == [SlotState.PLACING] * 3 and world.cluster.actors == {0: 1, 1: 1, 2: 1}
    world.advance(1, ActorPlaced(1, 1, NODES[0]), ActorPlaced(2, 1, NODES[0]))
    words = {slot: told for _, slot, told, keys in world.cluster.said if keys == KEYS}
    assert "--decode=cpu:0-1" in words[1] and "--decode=cpu:2-3" in words[2], "two workers of a node share no core"
    assert "--first-number=1" in words[2] and "--join=tcp://10.0.0.9:7000" in words[2]
    assert "decode:1 starts on 10.0.0.0, on cpu:2-3" in world.out.getvalue()


def test_a_lost_node_is_replaced_by_another_actor_in_the_bundle(world: LoopWorld) -> None:
    world.advance()
    world.advance(1, ActorPlaced(1, 1, NODES[0]))
    world.advance(1, ActorEnded(1, 1, None, ["ActorDiedError, the node is gone"]))
    assert world.states == [SlotState.PLACING, SlotState.WAITING, SlotState.PLACING] and 1 not in world.cluster.actors
    assert "decode:0 was lost with its node or actor: ActorDiedError, the node is gone; another" in world.out.getvalue()
    world.advance(0.6)
    assert world.states == [SlotState.PLACING] * 3 and world.cluster.actors[1] == 2
    # News of the old actor is nobody's business.
    world.advance(0, ActorPlaced(1, 1, NODES[0]), ActorEnded(1, 1, 0, []))
    assert world.states == [SlotState.PLACING] * 3
    world.advance(3600, ActorPlaced(1, 2, NODES[1]))
    assert world.states == [SlotState.PLACING, SlotState.RUNNING, SlotState.PLACING] and world.launch.failure is None


def test_a_worker_that_dies_again_and_again_is_given_up_and_the_rest_goes_on(world: LoopWorld) -> None:
    world.advance()
    for attempt in range(1, 20):
        if world.states[0] is SlotState.GIVEN_UP:
            break
        world.advance(0, ActorPlaced(0, attempt, NODES[0]))
        world.advance(0, ActorEnded(0, attempt, 1, ["Error: too bad"]))
        world.advance(10)
    assert world.states[0] is SlotState.GIVEN_UP and attempt == 7
    assert (
        world.launch.failure is None
        and "prefill:0 ended with exit code 1: too bad and is given up" in world.out.getvalue()
    )


def test_a_launch_without_any_worker_ends_with_the_last_ones_words(world: LoopWorld) -> None:
    world.advance()
    for slot in range(3):
        world.advance(0, ActorPlaced(slot, 1, NODES[0]))
        world.advance(0, ActorEnded(slot, 1, 2, ["Error: --dtype is no good."]))
    assert isinstance(world.launch.failure, RefusedError) and "--dtype is no good" in world.launch.failure.message


def test_a_group_that_fits_nowhere_ends_the_launch(world: LoopWorld) -> None:
    world.advance()
    world.advance(599)
    assert world.launch.failure is None
    world.advance(2)
    assert isinstance(world.launch.failure, LaunchError) and world.launch.failure.exit_code == 1
    assert "no place for the workers within 600 s" in world.launch.failure.message
    assert "3 nodes with CPU 2" in world.launch.failure.message


def test_a_signal_goes_to_the_proxy_and_the_workers_end_after_it(world: LoopWorld) -> None:
    # The signal is pending when the loop begins.
    def reserve(workers: Sequence[PlacedWorker]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    world.cluster.reserve = reserve  # type: ignore[method-assign]
    assert world.launch.run() == 0
    assert world.proxy.told == [signal.SIGTERM] and world.cluster.closed == END_WITHIN
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_failure_ends_the_proxy_too(world: LoopWorld) -> None:
    world.launch.failure = LaunchError("nothing works")
    with pytest.raises(LaunchError, match="nothing works"):
        world.launch.run()
    assert world.proxy.told == [signal.SIGINT] and world.cluster.closed is not None


def test_the_table_of_moves_has_every_state_and_refuses_others(world: LoopWorld) -> None:
    assert set(SLOT_MOVES) == set(SlotState)
    with pytest.raises(AssertionError, match="cannot go from WAITING to RUNNING"):
        world.launch.slots[0].move(SlotState.RUNNING)


class LoopMachine(RuleBasedStateMachine):
    """Events in any order, stale ones too: no bundle has two actors, and cores of running workers are those of a
    node."""

    def __init__(self) -> None:
        super().__init__()
        self.world = LoopWorld(restart_attempts="3")
        self.world.advance()

    @rule(slot=st.integers(0, 2), back=st.integers(0, 1), node=st.sampled_from(NODES))
    def placed(self, slot: int, back: int, node: ClusterNode) -> None:
        current = self.world.launch.slots[slot]
        if back or current.state is SlotState.PLACING:
            self.world.advance(0, ActorPlaced(slot, current.attempt - back, node))

    @rule(slot=st.integers(0, 2), back=st.integers(0, 1), code=st.sampled_from([None, 0, 1, 2, 137]))
    def ended(self, slot: int, back: int, code: int | None) -> None:
        self.world.advance(0, ActorEnded(slot, self.world.launch.slots[slot].attempt - back, code, ["Error: x"]))

    @rule(seconds=st.floats(0, 30))
    def waits(self, seconds: float) -> None:
        self.world.advance(seconds)

    @invariant()
    def actors_are_those_of_living_slots(self) -> None:
        living = (SlotState.PLACING, SlotState.RUNNING)
        slots = self.world.launch.slots
        assert self.world.cluster.actors == {n: one.attempt for n, one in enumerate(slots) if one.state in living}
        assert all(bool(one.cores) == (one.state is SlotState.RUNNING) == (one.node is not None) for one in slots)
        given_up = all(one.state is SlotState.GIVEN_UP for one in slots)
        assert (self.world.launch.failure is not None) == given_up

    def teardown(self) -> None:
        self.world.close()


TestLoop = LoopMachine.TestCase
TestLoop.settings = settings(stateful_step_count=15, max_examples=examples(15, 100))
