# SPDX-License-Identifier: Apache-2.0
"""A connection: an edge between two partitions, over which the passes of one feed the other."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from pontil.runtime.stages.graph.policies import ChunkPolicy

# The consumer's walk for the items of one pass. Given: the walk of the producer's pass, the consumer's tracked walk or
# None before its first, the number of the producer's pass, from 0.
WalkCallback: TypeAlias = Callable[[str, str | None, int], str]
ConnectionKey: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Connection:
    """An edge between two partitions, known by (source, target, edge).

    It is a stream: one item for each pass that emits on the edge, taken in chunks as `policy` says. With a `callback`
    it drives its target: the callback names the target's walk for each item.
    `capacity` is the number of items that the producer may be ahead of what the consumer has run.
    """

    source: str
    target: str
    edge: str
    policy: ChunkPolicy
    callback: WalkCallback | None = None
    capacity: int = 512

    @property
    def key(self) -> ConnectionKey:
        return self.source, self.target, self.edge

    @property
    def drives(self) -> bool:
        return self.callback is not None

    @property
    def label(self) -> str:
        """The connection in an error message."""
        return f"connection '{self.edge}' from '{self.source}' to '{self.target}'"
