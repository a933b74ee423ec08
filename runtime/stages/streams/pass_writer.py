# SPDX-License-Identifier: Apache-2.0
"""The items of all edges out of a stage of one run, written pass by pass, with each consumer's walk."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from pontil.runtime.stages.graph.catalog import edge_name
from pontil.runtime.stages.graph.graph import Graph
from pontil.runtime.stages.graph.producer import StreamProducer
from pontil.runtime.stages.streams.producer_stream import ProducerStream


@dataclass(frozen=True, slots=True)
class StageTotals:
    """The items and tokens that a stage has made, by stream, and the tracked walks of its consumers."""

    produced: dict[str, int] = field(default_factory=dict)
    token_counts: dict[str, int] = field(default_factory=dict)
    walks: dict[str, str] = field(default_factory=dict)


NO_ITEMS = StageTotals()


class PassWriter:
    """The edges out of a stage of one run. `streams` are those that are read, by name; `counted` adds up the sizes of
    the token axes of all, which are the same whoever reads them still (E5)."""

    def __init__(self, graph: Graph, stage: str, streams: Mapping[str, ProducerStream]) -> None:
        self.producer, self.streams = StreamProducer(graph, stage), streams
        self.names = {edge_name(one): one.edge for one in graph.outgoing(stage)}
        self.counted = dict[str, int]()
        self.ended = False

    @property
    def is_full(self) -> bool:
        """Return whether a consumer is so far behind that no pass may begin (E13)."""
        return not self.ended and any(stream.is_full for stream in self.streams.values())

    def next_index(self, edge: str) -> int:
        """Return the index of the next item of a stream."""
        return self.producer.produced.get(self.names[edge], 0)

    def write(self, walk: str, values: Mapping[str, NDArray[Any]]) -> None:
        """Emit what a pass under this walk made: an item of each edge that is named so."""
        items = {name: values[name] for name in self.producer.edges if name in values}
        made = self.producer.emit(walk, {name: item.shape for name, item in items.items()})
        for name, count in made.token_counts.items():
            self.counted[name] = self.counted.get(name, 0) + count
        for marker in made.markers:
            if (stream := self.streams.get(edge_name(marker.connection))) is not None:
                stream.mark(marker.index, marker.walk)
        for tag in made.tags:
            if (stream := self.streams.get(edge_name(tag.connection))) is not None:
                stream.emit(tag.index, tag.walk, items[tag.connection.edge])

    def finish(self) -> None:
        """Tell all consumers that no more items follow (E12)."""
        if not self.ended:
            self.ended = True
            for edge, stream in self.streams.items():
                stream.finish(self.next_index(edge))

    def totals(self) -> StageTotals:
        counted = {edge: self.counted.get(name, 0) for edge, name in self.names.items()}
        return StageTotals({edge: self.next_index(edge) for edge in self.names}, counted, self.producer.tracked)
