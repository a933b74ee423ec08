# SPDX-License-Identifier: Apache-2.0
"""All streams into one partition of one request: a pass takes one chunk of each."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pontil.runtime.graph.connection import ConnectionKey
from pontil.runtime.graph.graph import Graph
from pontil.runtime.graph.stream_buffer import Chunk, StreamBuffer, StreamFault


@dataclass(frozen=True, slots=True)
class PassInput:
    """Chunks for one pass, of the same walk. A stream that gave its final chunk earlier has none. `final`: no stream
    has anything left. `goes_on`: the consumer goes on by itself after that."""

    walk: str | None
    chunks: Mapping[ConnectionKey, Chunk]
    final: bool
    goes_on: bool

    @property
    def is_last_pass(self) -> bool:
        return self.final and not self.goes_on


class StreamInputs:
    """The buffers of one partition and request on one worker."""

    def __init__(self, buffers: Mapping[ConnectionKey, StreamBuffer]) -> None:
        self.buffers = dict(buffers)

    @classmethod
    def of(cls, graph: Graph, partition: str, hosted: Collection[str] | None = None) -> "StreamInputs":
        """Return empty buffers for all streams into a partition; `hosted` are its walks on this worker, None for all
        (`GraphPlacement.hosted`)."""
        last = graph.partition(partition).last_walk
        streams = [one for one in graph.incoming(partition) if one.policy is not None]
        return cls({one.key: StreamBuffer(one, last, hosted) for one in streams})

    def pop(self) -> PassInput | None:
        """Return one chunk of each stream that is not finished, if all are ready; else leave all as they are. Raises
        StreamFault if they are for different walks (E1)."""
        found = dict[ConnectionKey, Chunk]()
        for key, buffer in self.buffers.items():
            if buffer.finished:
                continue
            chunk = buffer.pop()
            if chunk is None:
                self.undo(found)
                return None
            found[key] = chunk
        if not found:
            return None
        if len({chunk.walk for chunk in found.values()}) > 1:
            named = ", ".join(f"'{chunk.walk}' by {self.buffers[key].label}" for key, chunk in found.items())
            raise StreamFault(f"one pass is meant for several walks: {named}")
        walk = next(iter(found.values())).walk
        final = all(buffer.finished for buffer in self.buffers.values())
        goes_on = final and any(walk in buffer.policy.goes_on for buffer in self.buffers.values())
        return PassInput(walk, found, final, goes_on)

    def undo(self, chunks: Mapping[ConnectionKey, Chunk]) -> None:
        for key, chunk in chunks.items():
            self.buffers[key].put_back(chunk)

    def put_back(self, taken: PassInput) -> None:
        """Return the chunks that were popped last to the heads of their streams (E8)."""
        self.undo(taken.chunks)

    def record(self, taken: PassInput) -> None:
        """Record that the consumer's node ran with the chunks (E9)."""
        for key, chunk in taken.chunks.items():
            self.buffers[key].record(chunk)

    def close(self) -> None:
        for buffer in self.buffers.values():
            buffer.close()
