# SPDX-License-Identifier: Apache-2.0
"""The items of one edge, written in order of index, with the consumer's walk for each."""

from typing import Any

from numpy.typing import NDArray

from pontil.runtime.stages.graph.catalog import GraphModel
from pontil.runtime.stages.graph.producer import StreamProducer
from pontil.runtime.stages.streams.producer_stream import ProducerStream


class EdgeWriter:
    """One edge out of a stage of one run. `next_index` is the index of the next item; `counted` adds up the sizes of
    the token axes (E5)."""

    def __init__(self, model: GraphModel, edge: str, stream: ProducerStream) -> None:
        connection = model.connection(edge)
        self.edge, self.stream = connection.edge, stream
        self.producer = StreamProducer(model.graph, connection.source)
        self.counted = 0
        self.ended = False

    @property
    def next_index(self) -> int:
        return self.producer.produced.get(self.edge, 0)

    @property
    def is_full(self) -> bool:
        return not self.ended and self.stream.is_full

    def skip(self, walk: str, items: int) -> None:
        """Leave out items that another worker makes, so that those after them have the same tags."""
        for _ in range(items):
            self.producer.emit(walk, {self.edge: (0,)})

    def write(self, walk: str, array: NDArray[Any]) -> None:
        """Emit the next item, of a pass under this walk of the producer."""
        made = self.producer.emit(walk, {self.edge: array.shape})
        self.counted += made.token_counts[self.edge]
        for marker in made.markers:
            self.stream.mark(marker.index, marker.walk)
        for tag in made.tags:
            self.stream.emit(tag.index, str(tag.walk), array)

    def finish(self) -> None:
        """Tell the consumer that no more items follow (E12)."""
        if not self.ended:
            self.ended = True
            self.stream.finish(self.next_index)
