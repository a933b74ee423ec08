# SPDX-License-Identifier: Apache-2.0
"""A worker's handling of one partition of one request, as a state machine: a table, and the class that carries it out.

It stands for the workers around the real buffer, whose every state partition_model.py explores. A partition changes
state by nothing else, and an event without a row raises.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Protocol


class PartitionState(Enum):
    """IDLE: not begun here, so that streams only fill their buffers. CLEAN: nothing of the current walk is ingested or
    running. RUNNING: something is. ENDING: it has ended, but a pass still runs. DONE: its consumers know, and all is
    freed. HANDED_OVER: another worker goes on with it."""

    IDLE = "idle"
    CLEAN = "clean"
    RUNNING = "running"
    ENDING = "ending"
    DONE = "done"
    HANDED_OVER = "handed over"


class PartitionEvent(Enum):
    """BEGUN: the conductor's inputs or a handoff came, so that it may run here. INGESTED: input of the current walk.
    ENTERED: input of another walk, so the walk changes. PASSED: a pass ended, and more of the walk is ingested. QUIET:
    a pass ended, and nothing more is. LEFT: the next walk is another worker's. ENDED: the last pass, a stop of a node,
    a cancellation or a failure."""

    BEGUN = "begun"
    INGESTED = "ingested"
    ENTERED = "entered"
    PASSED = "passed"
    QUIET = "quiet"
    LEFT = "left"
    ENDED = "ended"


class PartitionAction(Enum):
    """RELEASE_PARKED gives the new walk what was parked for it (E7). TELL_CONSUMERS says where each stream ends
    (E12)."""

    CHANGE_WALK = "change walk"
    RELEASE_PARKED = "release parked"
    INGEST = "ingest"
    CANCEL_PASSES = "cancel passes"
    SEND_HANDOFF = "send handoff"
    TELL_CONSUMERS = "tell consumers"
    FREE = "free"


PartitionTable = Mapping[
    tuple[PartitionState, PartitionEvent], tuple[PartitionState, tuple[PartitionAction, ...]]
]  # fmt: skip

ENTER = (PartitionAction.CHANGE_WALK, PartitionAction.RELEASE_PARKED, PartitionAction.INGEST)
# The only way to DONE. Consumers are told before anything is freed.
FINISH = (PartitionAction.TELL_CONSUMERS, PartitionAction.FREE)

PARTITION: PartitionTable = {
    (PartitionState.IDLE, PartitionEvent.BEGUN): (PartitionState.CLEAN, ()),
    (PartitionState.IDLE, PartitionEvent.ENDED): (PartitionState.DONE, FINISH),
    (PartitionState.CLEAN, PartitionEvent.INGESTED): (PartitionState.RUNNING, (PartitionAction.INGEST,)),
    (PartitionState.CLEAN, PartitionEvent.ENTERED): (PartitionState.RUNNING, ENTER),
    (PartitionState.CLEAN, PartitionEvent.LEFT): (PartitionState.HANDED_OVER, (PartitionAction.SEND_HANDOFF,)),
    (PartitionState.CLEAN, PartitionEvent.ENDED): (PartitionState.DONE, FINISH),
    (PartitionState.RUNNING, PartitionEvent.INGESTED): (PartitionState.RUNNING, (PartitionAction.INGEST,)),
    (PartitionState.RUNNING, PartitionEvent.PASSED): (PartitionState.RUNNING, ()),
    (PartitionState.RUNNING, PartitionEvent.QUIET): (PartitionState.CLEAN, ()),
    (PartitionState.RUNNING, PartitionEvent.ENDED): (PartitionState.ENDING, (PartitionAction.CANCEL_PASSES,)),
    (PartitionState.ENDING, PartitionEvent.PASSED): (PartitionState.ENDING, ()),
    (PartitionState.ENDING, PartitionEvent.QUIET): (PartitionState.DONE, FINISH),
    (PartitionState.ENDING, PartitionEvent.ENDED): (PartitionState.ENDING, ()),
}

PARTITION_ENDS = frozenset({PartitionState.DONE, PartitionState.HANDED_OVER})
# States in which a partition may take input.
TAKING = frozenset({PartitionState.CLEAN, PartitionState.RUNNING})


class PartitionCallbacks(Protocol):
    """Actions of a partition that are its worker's. `taken` is what `PartitionRun.take` was given."""

    def ingest(self, taken: object) -> None:
        """Prepare a pass of the current walk. `PartitionRun.passed` follows when it has ended."""

    def cancel_passes(self) -> None:
        """Let passes end early. `passed` follows for each all the same."""

    def send_handoff(self, parked: dict[str, list[object]]) -> None:
        """Send KV, stream positions and the parked inputs to the worker of the next walk."""

    def tell_consumers(self) -> None:
        """Send the end of every stream (`StreamProducer.end`)."""

    def free(self) -> None:
        """Free blocks and buffers, and close the partition's own streams."""


class PartitionRun:
    """One partition of one request on one worker. `inputs` are those of the current walk that came beside streams."""

    def __init__(self, callbacks: PartitionCallbacks, table: PartitionTable = PARTITION) -> None:
        self.callbacks, self.table = callbacks, table
        self.state = PartitionState.IDLE
        self.walk: str | None = None
        self.ingested = 0
        self.inputs = list[object]()
        self.parked = dict[str, list[object]]()
        self.acts: dict[PartitionAction, Callable[[str | None, object], None]] = {
            PartitionAction.CHANGE_WALK: self.change_walk,
            PartitionAction.RELEASE_PARKED: lambda walk, taken: self.release(),
            PartitionAction.INGEST: self.ingest,
            PartitionAction.CANCEL_PASSES: lambda walk, taken: callbacks.cancel_passes(),
            PartitionAction.SEND_HANDOFF: lambda walk, taken: callbacks.send_handoff(self.parked),
            PartitionAction.TELL_CONSUMERS: lambda walk, taken: callbacks.tell_consumers(),
            PartitionAction.FREE: lambda walk, taken: callbacks.free(),
        }

    @property
    def is_over(self) -> bool:
        return self.state in PARTITION_ENDS

    def begin(self, walk: str | None = None) -> None:
        """Let it run here; `walk` is the one it is in, if it was handed over or is replayed."""
        self.walk = walk
        self.happened(PartitionEvent.BEGUN)

    def may_enter(self, walk: str | None) -> bool:
        """Return whether input of a walk may be taken now: of another than the current one only when clean (E8)."""
        return self.state is PartitionState.CLEAN or self.state is PartitionState.RUNNING and walk in (None, self.walk)

    def take(self, walk: str | None, taken: object) -> None:
        """Take input of a pass under a walk that it may enter (None: the current one)."""
        is_same = walk is None or walk == self.walk
        self.happened(PartitionEvent.INGESTED if is_same else PartitionEvent.ENTERED, walk, taken)

    def give(self, walk: str, payload: object) -> None:
        """Give an input that is no stream. For another walk than the current one it is parked until that is entered.
        After the end it is dropped."""
        if self.state in TAKING and walk == self.walk:
            self.inputs.append(payload)
        elif not self.is_over and self.state is not PartitionState.ENDING:
            self.parked.setdefault(walk, []).append(payload)

    def passed(self) -> None:
        """Note the end of a pass, after its report was made."""
        assert self.ingested > 0, "a pass ended that was not ingested"
        self.ingested -= 1
        self.happened(PartitionEvent.PASSED if self.ingested else PartitionEvent.QUIET)

    def leave(self) -> None:
        """Hand over to the worker of the next walk. Only when CLEAN."""
        self.happened(PartitionEvent.LEFT)

    def end(self) -> None:
        """End the partition, for whatever reason (E12). Repeating it, or ending one that was handed over, does
        nothing."""
        if not self.is_over:
            self.happened(PartitionEvent.ENDED)

    def happened(self, event: PartitionEvent, walk: str | None = None, taken: object = None) -> None:
        if (self.state, event) not in self.table:
            raise AssertionError(f"to a partition that is {self.state.name} cannot happen {event.name}")
        self.state, actions = self.table[self.state, event]
        for action in actions:
            self.acts[action](walk, taken)

    def change_walk(self, walk: str | None, taken: object) -> None:
        self.walk, self.inputs = walk, []

    def release(self) -> None:
        if self.walk is not None:
            self.inputs.extend(self.parked.pop(self.walk, []))

    def ingest(self, walk: str | None, taken: object) -> None:
        self.ingested += 1
        self.callbacks.ingest(taken)
