# SPDX-License-Identifier: Apache-2.0
"""The producer's end of all streams of one request out of one partition: indices and tags of each pass (E2, E3, E5)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pontil.runtime.errors import GraphError
from pontil.runtime.stages.graph.connection import Connection
from pontil.runtime.stages.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class StreamTag:
    """A copy of an item for one consumer: its index in the stream, and the consumer's walk that it is for. The walk
    says which worker gets it (E4); None: the worker of the consumer, which is a STATE_MACHINE partition."""

    connection: Connection
    index: int
    walk: str | None


@dataclass(frozen=True, slots=True)
class StreamMarker:
    """A change of a consumer's walk, for the worker that hosts `left`: no item from `index` on is for that walk."""

    connection: Connection
    index: int
    walk: str
    left: str


@dataclass(frozen=True, slots=True)
class PassTags:
    """The result of tagging a pass: copies to send, markers to send, and the sizes of the token axes by edge."""

    tags: tuple[StreamTag, ...]
    markers: tuple[StreamMarker, ...]
    token_counts: Mapping[str, int]


class StreamProducer:
    """The streams out of one partition. `produced` counts items by edge: several connections of one edge carry copies
    of the same items. `tracked` has the walk of each consumer, as this producer set it last. `passes` counts passes."""

    def __init__(self, graph: Graph, partition: str) -> None:
        self.graph = graph
        self.streams = graph.outgoing(partition)
        self.edges = tuple(dict.fromkeys(stream.edge for stream in self.streams))
        self.produced = dict[str, int]()
        self.tracked = dict[str, str]()
        self.passes = 0

    def emit(self, walk: str, shapes: Mapping[str, Sequence[int]]) -> PassTags:
        """Tag what a pass under `walk` emitted: the shape of the item by edge. One index for each edge of the pass,
        however many copies go out. Walks change after all edges were tagged, and here, not at the conductor."""
        if unknown := [edge for edge in shapes if edge not in self.edges]:
            raise GraphError(f"the node emitted on '{unknown[0]}', but the streams of its partition are {self.edges}")
        emitted = [stream for stream in self.streams if stream.edge in shapes]
        self.check_whole(emitted)
        driven = self.asked(walk, emitted)
        now = {**self.tracked, **driven}
        tags = [StreamTag(one, self.produced.get(one.edge, 0), now.get(one.target)) for one in emitted]
        for edge in shapes:
            self.produced[edge] = self.produced.get(edge, 0) + 1
        markers = self.markers_of(driven, shapes)
        self.tracked, self.passes = now, self.passes + 1
        counts = {edge: shape[0] if shape else 1 for edge, shape in shapes.items()}
        return PassTags(tuple(tags), markers, counts)

    def check_whole(self, emitted: Sequence[Connection]) -> None:
        """Raise GraphError if a consumer has a part of what a pass emits to it: its passes take a chunk of each stream,
        so their indices go together."""
        fed = {stream.target for stream in emitted}
        for one in self.streams:
            if one.target in fed and one not in emitted:
                raise GraphError(f"a pass emitted to '{one.target}', and nothing on its '{one.edge}'")

    def asked(self, walk: str, emitted: Sequence[Connection]) -> dict[str, str]:
        """Return the walk of each consumer that this pass drives. Callbacks that disagree raise GraphError (E1)."""
        driven = dict[str, str]()
        for one in emitted:
            if one.callback is None:
                continue
            chosen = one.callback(walk, self.tracked.get(one.target), self.passes)
            if self.graph.partition(one.target).walk(chosen) is None:
                raise GraphError(f"{one.label} drives its target to the walk '{chosen}', which it does not have")
            if driven.setdefault(one.target, chosen) != chosen:
                raise GraphError(
                    f"{one.label} drives its target to the walk '{chosen}', another connection to"
                    f" '{driven[one.target]}': callbacks into one partition must agree"
                )
        return driven

    def markers_of(self, driven: Mapping[str, str], shapes: Mapping[str, Sequence[int]]) -> tuple[StreamMarker, ...]:
        """Return a marker for each stream into a consumer whose walk changes. The item of this pass, if there is one,
        is the first after it."""
        found = list[StreamMarker]()
        for stream in self.streams:
            left, walk = self.tracked.get(stream.target), driven.get(stream.target)
            if walk is not None and left not in (None, walk):
                index = self.produced.get(stream.edge, 0) - (stream.edge in shapes)
                found.append(StreamMarker(stream, index, walk, str(left)))
        return tuple(found)
