# SPDX-License-Identifier: Apache-2.0
"""The items of one edge of a stage that generates, whose passes emit on each of its edges by itself."""

from typing import Any

from numpy.typing import NDArray

from pontil.runtime.stages.graph.catalog import GraphModel
from pontil.runtime.stages.streams.pass_writer import PassWriter
from pontil.runtime.stages.streams.producer_stream import ProducerStream


class EdgeWriter(PassWriter):
    """The one edge named `edge`, and its `stream`."""

    def __init__(self, model: GraphModel, edge: str, stream: ProducerStream) -> None:
        super().__init__(model.graph, model.connection(edge).source, {edge: stream})
        self.edge, self.stream = edge, stream

    @property
    def index(self) -> int:
        """The index of the next item."""
        return self.next_index(self.edge)

    def skip(self, walk: str, items: int) -> None:
        """Leave out items that another worker makes, so that those after them have the same tags."""
        for _ in range(items):
            self.producer.emit(walk, {self.names[self.edge]: (0,)})

    def put(self, walk: str, array: NDArray[Any]) -> None:
        """Emit the next item, of a pass under this walk."""
        self.write(walk, {self.names[self.edge]: array})
