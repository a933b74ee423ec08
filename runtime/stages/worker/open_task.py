# SPDX-License-Identifier: Apache-2.0
"""A task of a stage without tokens, from its arrival to its last output."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from pontil.runtime.stages.graph.partition import GraphPartition
from pontil.runtime.stages.graph.stream_buffer import Chunk, StreamBuffer, StreamFault, StreamPosition
from pontil.runtime.stages.nodes.node import Items, NodeInput, NodeRun, Pieces, WalkValues
from pontil.runtime.stages.streams.pass_writer import NO_ITEMS, PassWriter
from pontil.runtime.stages.worker.walk_executor import run_part
from pontil.runtime.timeline.work_times import WorkTimes
from pontil.runtime.wire.messages import NodeTask, PassDone

# Seconds between two reports of a stage that goes on.
REPORT_EACH = 0.25


@dataclass(slots=True, eq=False)
class OpenTask:
    """One attempt, at the `worker` of this incarnation, at a stage with the walks of `partition`. Its input are the
    streams in `buffers`, by edge, or (with none) the data of the message, of which it makes passes as long as it
    `goes_on`. What its passes make goes to `writer`.

    A pass takes a chunk of each stream that has not ended, so number n has the same ones in every attempt. `chunks` are
    those that were taken from the buffers for the next pass, or the one whose work is `pieces`, under `walk`. `passes`
    counts those that have run, of which one was `reported_at` this time. `ready_at` is the time when something could
    first be computed, `begun_at` when it was. `outputs` counts those made, `consumed` the tokens that went into passes
    by edge (A1). `said` is true once an output was sent.
    """

    worker: str
    message: NodeTask
    arrived: float
    run: NodeRun
    partition: GraphPartition
    buffers: Mapping[str, StreamBuffer] = field(default_factory=dict)
    writer: PassWriter | None = None
    chunks: dict[str, Chunk] = field(default_factory=dict)
    pieces: Pieces | None = None
    walk: str | None = None
    passes: int = 0
    goes_on: bool = False
    ready_at: float | None = None
    begun_at: float | None = None
    outputs: int = 0
    consumed: dict[str, int] = field(default_factory=dict)
    said: bool = False
    reported_at: float = 0.0
    seen: list[tuple[int, int, int | None]] | None = field(default=None, repr=False)
    times: WorkTimes = field(default_factory=WorkTimes)

    @property
    def key(self) -> tuple[str, int]:
        return self.message.request_id, self.message.attempt

    @property
    def address(self) -> tuple[str, str, str, int]:
        """The first fields of every message about it."""
        return self.worker, self.message.sender, *self.key

    @property
    def is_source(self) -> bool:
        """True if it makes items of the data of the message alone."""
        return self.writer is not None and not self.buffers

    @property
    def is_at_end(self) -> bool:
        """True once each stream has had its final chunk."""
        return all(buffer.finished for buffer in self.buffers.values())

    def skip(self, outputs: int) -> None:
        """Begin after the chunks of so many outputs of the only stream, one each and full."""
        ((edge, buffer),) = self.buffers.items()
        index = 0
        for _ in range(outputs):
            index += buffer.policy.needed(index)
        if outputs:
            buffer.hear(StreamPosition(index, self.partition.last_walk))
            self.walk = self.partition.last_walk or self.partition.walk_of_pass(outputs - 1)
        self.outputs = self.passes = outputs
        self.consumed[edge] = index

    def look(self, now: float) -> bool:
        """Return whether there is something to compute; take the next chunks of the streams that are ready. It costs
        next to nothing as long as nothing has arrived."""
        if self.pieces is None and self.writer is not None and self.writer.is_full:
            return False
        if self.pieces is None and self.buffers and not self.take_chunks():
            return False
        if self.ready_at is None:
            self.ready_at = now
        return True

    def take_chunks(self) -> bool:
        """Take a chunk of each stream that goes on. Return whether the next pass has all of its own."""
        arrived = [(len(one.items), len(one.markers), one.ends_at) for one in self.buffers.values()]
        if arrived != self.seen:
            self.seen = arrived
            for edge, buffer in self.buffers.items():
                chunk = None if edge in self.chunks else buffer.pop()
                if chunk is not None:
                    self.chunks[edge] = chunk
        return all(edge in self.chunks or buffer.finished for edge, buffer in self.buffers.items())

    def is_late(self, now: float) -> bool:
        """Return whether it has waited for its turn past its deadline. One that waits for items waits for others."""
        deadline = self.message.deadline
        waits = not self.buffers and self.begun_at is None and not self.message.delivered
        return waits and deadline is not None and now >= self.arrived + deadline

    def compute(self, now: float) -> tuple[bytes | None, bool]:
        """Do one piece of work. Return its output, if it has one, and whether the work on the pass has ended."""
        if self.begun_at is None:
            self.begun_at = now
        if self.pieces is None:
            self.pieces = self.begin_pass()
        try:
            return next(self.pieces), False
        except StopIteration as end:
            self.pieces = None
            self.emit(end.value)
            return None, True

    def begin_pass(self) -> Pieces:
        self.walk = self.next_walk()
        walk = self.partition.walk(self.walk)
        if walk is None:
            raise StreamFault(f"{self.partition.name} has no walk '{self.walk}'")
        items, context = dict[str, Items](), dict[str, Items]()
        for edge, chunk in self.chunks.items():
            name = edge.rpartition("/")[2]
            # Of a worker's buffers all items are arrays.
            items[name], context[name] = cast(Items, chunk.items), cast(Items, chunk.context)
            new = sum(item.shape[0] if item.ndim else 1 for item in items[name])
            self.consumed[edge] = self.consumed.get(edge, 0) + new
        return run_part(walk.body, self.run, NodeInput(walk.name, items, context, self.is_at_end))

    def next_walk(self) -> str:
        """Return the walk of the pass that begins: that of its chunks, or that which follows the one before."""
        if not self.partition.is_driven:
            return self.partition.following(self.walk)
        walks = {chunk.walk for chunk in self.chunks.values()} - {None}
        if len(walks) > 1:
            raise StreamFault(f"a pass of {self.partition.name} is driven to {' and '.join(sorted(map(str, walks)))}")
        return str(walks.pop() if walks else self.partition.last_walk)

    def emit(self, made: WalkValues) -> None:
        """Send what a pass made to the stages behind."""
        self.passes += 1
        self.goes_on = made.goes_on
        if self.writer is not None and self.walk is not None:
            self.writer.write(self.walk, made.values)

    def put_down(self) -> bool:
        """Record that the nodes ran with the chunks: another attempt begins with what is not recorded (E9). Return
        whether they were the last."""
        chunks, self.chunks, self.seen = self.chunks, {}, None
        for edge, chunk in chunks.items():
            self.buffers[edge].record(chunk)
        return self.is_at_end and not self.goes_on

    def is_report_due(self, done: bool, now: float) -> bool:
        """Return whether to report the pass that has run, and note that it is: the last one, and so many that the proxy
        sees the stage advance. A task without streams shows that by its outputs."""
        due = bool(self.buffers or self.writer) and (done or now - max(self.arrived, self.reported_at) >= REPORT_EACH)
        self.reported_at = now if due else self.reported_at
        return due

    def report(self, done: bool) -> PassDone:
        """Return the report of the last pass (E5)."""
        made = NO_ITEMS if self.writer is None else self.writer.totals()
        return PassDone(
            *self.address, self.message.node, self.walk or "", made.produced, {**self.consumed, **made.token_counts},
            {edge: buffer.next_index for edge, buffer in self.buffers.items()}, made.walks, done, self.passes,
        )  # fmt: skip

    @property
    def queue_seconds(self) -> float:
        return (self.begun_at or 0.0) - (self.ready_at or 0.0)
