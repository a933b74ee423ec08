# SPDX-License-Identifier: Apache-2.0
"""The interface of nodes that make no tokens to the worker that computes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class NodeResult:
    """One output of a node: text in UTF-8, or samples of 16 bits, little-endian, of one channel."""

    kind: str
    data: bytes
    sample_rate: int | None = None


@dataclass(frozen=True, slots=True)
class NodeInput:
    """What a task is made of: `data` for a node that is given everything at once, and the client's `options`. The first
    `delivered` outputs are with the client already."""

    data: bytes | None
    options: Mapping[str, Any]
    delivered: int = 0


class NodeRun(Protocol):
    """The computation of one task. Its outputs depend on the items alone, not on how they were cut into chunks, unless
    the connection's policy cuts them the same way for every attempt."""

    def feed(
        self, items: Sequence[NDArray[Any]], context: Sequence[NDArray[Any]], final: bool
    ) -> list[NodeResult | None]:
        """Take the items of a chunk, after the `context` of earlier ones; return the outputs that are complete now.
        None stands for one that is delivered already, and was not computed. With `final` no more items follow."""


class Node(Protocol):
    """A node with its weights."""

    @property
    def identity(self) -> str:
        """A hash of everything that its outputs depend on besides their input."""

    def begin(self, task: NodeInput) -> NodeRun:
        """Begin a task. Raises RequestError for an input that it cannot compute."""
