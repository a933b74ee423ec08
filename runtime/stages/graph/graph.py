# SPDX-License-Identifier: Apache-2.0
"""A graph: the partitions of a model of several stages, and the connections between them."""

from dataclasses import dataclass

from pontil.runtime.errors import GraphError
from pontil.runtime.stages.graph.connection import Connection
from pontil.runtime.stages.graph.partition import GraphPartition
from pontil.runtime.stages.graph.validation import first_mistake


@dataclass(frozen=True, slots=True)
class Graph:
    """The stages of a model. A Graph that exists is valid: a mistake raises GraphError with one sentence (E1)."""

    name: str
    partitions: tuple[GraphPartition, ...]
    connections: tuple[Connection, ...] = ()

    def __post_init__(self) -> None:
        mistake = first_mistake(self.partitions, self.connections)
        if mistake is not None:
            raise GraphError(f"the graph '{self.name}' cannot run: {mistake}")

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(node for partition in self.partitions for node in partition.nodes)

    def partition(self, name: str) -> GraphPartition:
        """Return a partition. An unknown name raises GraphError."""
        for partition in self.partitions:
            if partition.name == name:
                return partition
        known = ", ".join(one.name for one in self.partitions)
        raise GraphError(f"the graph '{self.name}' has no partition '{name}'; it has {known}")

    def outgoing(self, partition: str) -> tuple[Connection, ...]:
        return tuple(connection for connection in self.connections if connection.source == partition)

    def incoming(self, partition: str) -> tuple[Connection, ...]:
        return tuple(connection for connection in self.connections if connection.target == partition)

    def consumers(self, partition: str) -> tuple[str, ...]:
        """Return the names of the partitions that a partition feeds, each once."""
        return tuple(dict.fromkeys(one.target for one in self.outgoing(partition)))
