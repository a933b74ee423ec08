# SPDX-License-Identifier: Apache-2.0
"""The interface of nodes that make no tokens to the worker that computes them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

# Kinds of output: text in UTF-8; samples of 16 bits, little-endian, of one channel.
TEXT, AUDIO = "text", "audio"

Items = Sequence[NDArray[Any]]


@dataclass(frozen=True, slots=True)
class NodeInput:
    """A task: `data` for a node that is given everything at once, and the client's `options`. The first `delivered`
    outputs are with the client already."""

    data: bytes | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    delivered: int = 0


class NodeRun(Protocol):
    """The computation of one task. The outputs joined depend on the items alone, not on when they came. Output number n
    is the same in every attempt."""

    def feed(self, items: Items, context: Items, final: bool) -> Iterator[bytes | None]:
        """Take the items of a chunk, after the `context` of earlier ones, and yield after each piece of work: an
        output, or None where the piece made none. Pieces are short, since other tasks have their turn between them. An
        output that is delivered already may be empty. With `final` no more items follow. The iterator is run to its
        end before the next chunk, or dropped with the task. Raises RequestError for an input that is not one."""


class StageNode(Protocol):
    """A node with its weights. `identity` is a hash of everything that its outputs depend on besides their input;
    `kind` and `sample_rate` are those of all its outputs. `one_per_chunk`: each chunk makes one output, from its items
    and context alone, so that chunks whose outputs are delivered need not be taken again."""

    @property
    def identity(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def sample_rate(self) -> int | None: ...

    @property
    def one_per_chunk(self) -> bool: ...

    def begin(self, task: NodeInput) -> NodeRun:
        """Begin a task; nothing is computed yet. Raises RequestError for one that it cannot compute."""
