# SPDX-License-Identifier: Apache-2.0
"""The producer's end of a stream that only records what goes into it, and a consumer's buffer to read it from."""

from typing import Any

import torch
from numpy.typing import NDArray

from pontil.runtime.stages.graph.catalog import GRAPHS
from pontil.runtime.stages.graph.stream_buffer import StreamBuffer
from pontil.runtime.stages.streams.edge_writer import EdgeWriter
from pontil.runtime.stages.streams.producer_stream import ProducerStream
from pontil.runtime.stages.streams.state_stream import StateStream

STATES = "thinker/talker/states"


class RecordedStream(ProducerStream):
    """`items` are (walk, array) by index; `markers` are (index, walk)."""

    def __init__(self) -> None:
        self.items: dict[int, tuple[str, NDArray[Any]]] = {}
        self.markers: list[tuple[int, str]] = []
        self.last: int | None = None
        self.full = False

    @property
    def is_full(self) -> bool:
        return self.full

    def emit(self, index: int, walk: str | None, array: NDArray[Any]) -> None:
        assert index not in self.items, "an index is used once"
        self.items[index] = str(walk), array.copy()

    def mark(self, index: int, walk: str) -> None:
        self.markers.append((index, walk))

    def begin_at(self, index: int) -> None:
        assert index == 0

    def finish(self, last_index: int) -> None:
        self.last = last_index

    def fill(self, buffer: StreamBuffer, most: int | None = None) -> None:
        """Give a buffer the items, in order of index, and the end."""
        for index, walk in self.markers:
            buffer.mark(index, walk)
        for index in sorted(self.items)[:most]:
            buffer.put(index, *self.items[index])
        if self.last is not None:
            buffer.end(self.last)


def recorded_writer(graph: str, edge: str) -> tuple[EdgeWriter, RecordedStream]:
    stream = RecordedStream()
    return EdgeWriter(GRAPHS[graph], edge, stream), stream


def states_from(start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.arange(start, start + count, dtype=torch.float32)
    return numbers[:, None].repeat(1, 4), -numbers[:, None].repeat(1, 4)


def streamed(prompt: int, spans: list[tuple[int, int]]) -> RecordedStream:
    writer, recorded = recorded_writer("qwen3-omni", STATES)
    stream = StateStream(writer, prompt, 2)
    for start, count in spans:
        stream.take(start, *states_from(start, count))
    stream.finish()
    return recorded


def whole_stream(prompt: int, answer: int) -> RecordedStream:
    return streamed(prompt, [(0, prompt), *((position, 1) for position in range(prompt, prompt + answer))])
