# SPDX-License-Identifier: Apache-2.0
"""A task of a stage without tokens, from its arrival to its last output."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from pontil.runtime.stages.graph.stream_buffer import Chunk, StreamBuffer, StreamPosition
from pontil.runtime.stages.nodes.node import NodeRun
from pontil.runtime.timeline.work_times import WorkTimes
from pontil.runtime.wire.messages import NodeTask, PassDone


@dataclass(slots=True, eq=False)
class OpenTask:
    """One attempt, at the `worker` of this incarnation. Its input is a stream, `edge` with its `buffer`, or (None) the
    data of the message.

    `pieces` is the work on the `chunk` that was taken from the buffer. `ready_at` is the time when something could
    first be computed, `begun_at` when it was. `outputs` counts those made, `consumed` the tokens that went into them.
    `said` is true once an output was sent, `said_final` once the last was.
    """

    worker: str
    message: NodeTask
    arrived: float
    run: NodeRun
    edge: str | None = None
    buffer: StreamBuffer | None = None
    chunk: Chunk | None = None
    pieces: Iterator[bytes | None] | None = None
    ready_at: float | None = None
    begun_at: float | None = None
    outputs: int = 0
    consumed: int = 0
    said: bool = False
    said_final: bool = False
    seen: tuple[int, int, int | None] | None = field(default=None, repr=False)
    times: WorkTimes = field(default_factory=WorkTimes)

    @property
    def key(self) -> tuple[str, int]:
        return self.message.request_id, self.message.attempt

    @property
    def address(self) -> tuple[str, str, str, int]:
        """The first fields of every message about it."""
        return self.worker, self.message.sender, *self.key

    @property
    def is_at_end(self) -> bool:
        """True while the last chunk is computed."""
        return self.chunk is None or self.chunk.final

    def look(self, now: float) -> bool:
        """Return whether there is something to compute; take the next chunk of the stream if it is ready. It costs next
        to nothing as long as nothing has arrived."""
        if self.pieces is None and self.chunk is None and self.buffer is not None:
            arrived = len(self.buffer.items), len(self.buffer.markers), self.buffer.ends_at
            if arrived == self.seen:
                return False
            self.seen, self.chunk = arrived, self.buffer.pop()
            if self.chunk is None:
                return False
        if self.ready_at is None:
            self.ready_at = now
        return True

    def is_late(self, now: float) -> bool:
        """Return whether it has waited for its turn past its deadline. One that waits for items waits for others."""
        deadline = self.message.deadline
        waits = self.buffer is None and self.begun_at is None and not self.message.delivered
        return waits and deadline is not None and now >= self.arrived + deadline

    def compute(self, now: float) -> tuple[bytes | None, bool]:
        """Do one piece of work. Return its output, if it has one, and whether the work on the chunk has ended."""
        if self.begun_at is None:
            self.begun_at = now
        if self.pieces is None:
            items, context = arrays(self.chunk)
            self.consumed += sum(item.shape[0] if item.ndim else 1 for item in items)
            self.pieces = self.run.feed(items, context, self.is_at_end)
        try:
            return next(self.pieces), False
        except StopIteration:
            self.pieces = None
            return None, True

    def put_down(self) -> bool:
        """Record that the node ran with the chunk: another attempt begins with what is not recorded (E9). Return
        whether it was the last one."""
        chunk, self.chunk, self.seen = self.chunk, None, None
        if chunk is None or self.buffer is None:
            return True
        self.buffer.record(chunk)
        return chunk.final

    def last_report(self, walk: str) -> PassDone | None:
        """Return the report that the partition has ended (E5), if its input is a stream."""
        if self.edge is None or self.buffer is None:
            return None
        position = self.buffer.next_index if self.chunk is None else self.chunk.after.index
        counts = {self.edge: self.consumed}
        return PassDone(*self.address, self.message.node, walk, {}, counts, {self.edge: position}, {}, done=True)

    @property
    def queue_seconds(self) -> float:
        return (self.begun_at or 0.0) - (self.ready_at or 0.0)


def arrays(chunk: Chunk | None) -> tuple[tuple[NDArray[Any], ...], tuple[NDArray[Any], ...]]:
    """Return the new items of a chunk and those before them. Of a worker's buffers all items are arrays."""
    return ((), ()) if chunk is None else (chunk.items, chunk.context)  # type: ignore[return-value]


def skip(buffer: StreamBuffer, walk: str | None, outputs: int) -> int:
    """Begin a stream after the chunks of so many outputs, one each; return how many of its items those had. Chunks that
    are not final are full."""
    index = 0
    for _ in range(outputs):
        index += buffer.policy.needed(index)
    if index:
        buffer.hear(StreamPosition(index, walk))
    return index
