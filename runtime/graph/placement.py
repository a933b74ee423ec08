# SPDX-License-Identifier: Apache-2.0
"""The placement of a graph: which worker runs which node in which walk. Checked before anything starts (E1, E4)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pontil.runtime.errors import GraphError
from pontil.runtime.graph.graph import Graph
from pontil.runtime.graph.partition import GraphPartition


@dataclass(frozen=True, slots=True)
class NodeSeat:
    """A node on a worker, in some walks or, if `walks` is None, in all that run it."""

    node: str
    worker: str
    walks: frozenset[str] | None = None

    def takes(self, node: str, walk: str) -> bool:
        return self.node == node and (self.walks is None or walk in self.walks)


@dataclass(frozen=True, slots=True)
class GraphPlacement:
    """A graph on workers. A node whose walks are on different workers is disaggregated. A GraphPlacement that exists is
    valid: each node has one worker for each walk that runs it. A mistake raises GraphError with one sentence."""

    graph: Graph
    seats: tuple[NodeSeat, ...]

    def __post_init__(self) -> None:
        for check in (unknown_names, places, walk_specific_consumers):
            for mistake in check(self.graph, self.seats):
                raise GraphError(f"the graph '{self.graph.name}' cannot be placed so: {mistake}")

    def worker(self, node: str, walk: str) -> str:
        """Return the worker of a node in a walk. A node that the walk does not run raises GraphError."""
        for seat in self.seats:
            if seat.takes(node, walk) and node in self.nodes_of(walk):
                return seat.worker
        raise GraphError(f"the walk '{walk}' has no node '{node}'")

    def workers(self, walk: str) -> tuple[str, ...]:
        """Return the workers whose reports make a pass of a walk complete (E5)."""
        return tuple(dict.fromkeys(self.worker(node, walk) for node in self.nodes_of(walk)))

    def entry(self, walk: str) -> tuple[str, ...]:
        """Return the workers of the nodes that take a walk's input; a stream's items for the walk go there (E4)."""
        found = self.graph.partition_of(walk).walk(walk)
        assert found is not None
        return tuple(dict.fromkeys(self.worker(node, walk) for node in found.entries))

    def hosted(self, worker: str, partition: str) -> frozenset[str]:
        """Return the walks of a partition whose input a worker takes."""
        return frozenset(one.name for one in self.graph.partition(partition).walks if worker in self.entry(one.name))

    def hosts(self, partition: str) -> tuple[str, ...]:
        """Return every worker that runs any walk of a partition. Each hears of its producers' passes (E6)."""
        walks = self.graph.partition(partition).walks
        return tuple(dict.fromkeys(worker for walk in walks for worker in self.workers(walk.name)))

    def nodes_of(self, walk: str) -> tuple[str, ...]:
        found = self.graph.partition_of(walk).walk(walk)
        assert found is not None
        return found.nodes


def needs(partition: GraphPartition) -> Iterator[tuple[str, str]]:
    """Yield each (node, walk) that has to have a worker."""
    for walk in partition.walks:
        for node in walk.nodes:
            yield node, walk.name


def unknown_names(graph: Graph, seats: Sequence[NodeSeat]) -> Iterator[str]:
    known = {each for partition in graph.partitions for each in needs(partition)}
    for seat in seats:
        if seat.node not in graph.nodes:
            yield f"there is no node '{seat.node}'; there are {', '.join(graph.nodes)}"
        for walk in sorted(seat.walks or ()):
            if (seat.node, walk) not in known:
                yield f"the node '{seat.node}' is not run by a walk '{walk}'"


def places(graph: Graph, seats: Sequence[NodeSeat]) -> Iterator[str]:
    for partition in graph.partitions:
        for node, walk in needs(partition):
            workers = [seat.worker for seat in seats if seat.takes(node, walk)]
            if not workers:
                yield f"no worker runs the node '{node}' in the walk '{walk}': place it"
            if len(workers) > 1:
                named = ", ".join(workers)
                yield f"the node '{node}' has {len(workers)} places in the walk '{walk}' ({named}): keep one"


def walk_specific_consumers(graph: Graph, seats: Sequence[NodeSeat]) -> Iterator[str]:
    """Refuse to spread a STATE_MACHINE consumer of a stream by walk: its producer does not know its walk, so it could
    not tell where an item goes."""
    for partition in graph.partitions:
        streamed = [one for one in graph.incoming(partition.name) if one.policy is not None]
        if partition.is_driven or not streamed:
            continue
        for node in partition.nodes:
            workers = {seat.worker for _, walk in needs(partition) for seat in seats if seat.takes(node, walk)}
            if len(workers) > 1:
                yield (
                    f"partition '{partition.name}' is STATE_MACHINE and takes a stream, so its node '{node}' has to be"
                    f" on one worker for all walks, and it is on {', '.join(sorted(workers))}"
                )
