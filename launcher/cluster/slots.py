# SPDX-License-Identifier: Apache-2.0
"""The workers of a launch on a cluster: for each its state, the moves between states, and what a move needs done."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pontil.launcher.cluster.cluster_plan import ClusterNode, PlacedWorker
from pontil.launcher.foundation.errors import RefusedError
from pontil.launcher.supervisor.restart_policy import RestartPolicy

# Exits to remember: one more than the restarts that can be asked for, so no policy looks at more.
REMEMBERED_EXITS = 1001


class SlotState(Enum):
    """WAITING: for its restart. PLACING: Ray looks for a node, or starts an actor there. RUNNING: its launch runs."""

    WAITING = "waiting"
    PLACING = "placing"
    RUNNING = "running"
    GIVEN_UP = "given up"


SLOT_MOVES: dict[SlotState, frozenset[SlotState]] = {
    SlotState.WAITING: frozenset({SlotState.PLACING}),
    SlotState.PLACING: frozenset({SlotState.RUNNING, SlotState.WAITING, SlotState.GIVEN_UP}),
    SlotState.RUNNING: frozenset({SlotState.WAITING, SlotState.GIVEN_UP}),
    SlotState.GIVEN_UP: frozenset(),
}


@dataclass(frozen=True, slots=True)
class ActorPlaced:
    """An actor of the slot is on this node. `attempt` is the number of the slot's actor: news of an older one is
    stale."""

    slot: int
    attempt: int
    node: ClusterNode


@dataclass(frozen=True, slots=True)
class ActorEnded:
    """The slot's actor has ended, by its launch with that exit code and these last lines, or (None) by the loss of the
    actor or its node, which the line describes."""

    slot: int
    attempt: int
    code: int | None
    lines: Sequence[str] = ()

    @property
    def words(self) -> str:
        """The end in words that follow the worker's name."""
        last = self.lines[-1].strip().removeprefix("Error: ") if self.lines else "without a word"
        return (
            f"was lost with its node or actor: {last}"
            if self.code is None
            else f"ended with exit code {self.code}: {last}"
        )


class Slot:
    """The place of one worker in the group, in which one actor after the other runs its launch."""

    def __init__(self, worker: PlacedWorker, now: float) -> None:
        self.worker = worker
        self.state = SlotState.WAITING
        self.due = now
        self.attempt = 0
        self.began = now
        self.node: ClusterNode | None = None
        self.cores: tuple[int, ...] = ()
        self.exits: deque[float] = deque(maxlen=REMEMBERED_EXITS)
        self.last: ActorEnded | None = None

    def move(self, state: SlotState) -> None:
        """Take the state. A move that is not in the table is a bug and raises AssertionError."""
        if state not in SLOT_MOVES[self.state]:
            raise AssertionError(f"{self.worker.name} cannot go from {self.state.name} to {state.name}")
        self.state = state

    def is_current(self, event: "ActorPlaced | ActorEnded") -> bool:
        alive = self.state in (SlotState.PLACING, SlotState.RUNNING)
        return alive and event.attempt == self.attempt

    def is_due(self, now: float) -> bool:
        return self.state is SlotState.WAITING and now >= self.due

    def place(self, now: float) -> None:
        """Begin to look for a node."""
        self.move(SlotState.PLACING)
        self.attempt += 1
        self.began = now

    def settle(self, node: ClusterNode, other_slots: Sequence["Slot"]) -> str:
        """Take a node, and cores there that the fewest others have; return the device list."""
        self.move(SlotState.RUNNING)
        beside = [
            slot
            for slot in other_slots
            if slot is not self and slot.node is not None and slot.node.address == node.address
        ]
        devices, self.cores = self.worker.devices(node, [core for slot in beside for core in slot.cores])
        self.node = node
        return devices

    def end(self, event: ActorEnded, policy: RestartPolicy, now: float) -> float | None:
        """Take the end of its actor. Return the seconds until the next one, or None if it is given up: after too many,
        and at once if its options were refused."""
        self.node, self.cores, self.last = None, (), event
        self.exits.append(now)
        delay = None if event.code == RefusedError.exit_code else policy.delay(list(self.exits), now)
        self.move(SlotState.GIVEN_UP if delay is None else SlotState.WAITING)
        self.due = now + (delay or 0.0)
        return delay
