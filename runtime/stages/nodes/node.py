# SPDX-License-Identifier: Apache-2.0
"""The interface of nodes that make no tokens to the worker that computes them."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

# Kinds of output: text in UTF-8; samples of 16 bits, little-endian, of one channel.
TEXT, AUDIO = "text", "audio"

Items = Sequence[NDArray[Any]]


@dataclass(frozen=True, slots=True)
class TaskInput:
    """A task: `data` for a node that is given everything at once, and the client's `options`. The first `delivered`
    outputs are with the client already. Nothing that is kept of `data` is found by a task with another `cache_salt`."""

    data: bytes | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    delivered: int = 0
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class WalkValues:
    """The values that a part of a walk made, by name. At the end of a pass those that are named as edges become their
    items. `stops`: the loop around it ends with this round. `goes_on`: a stage without streams has another pass."""

    values: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    stops: bool = False
    goes_on: bool = False


NOTHING = WalkValues()


@dataclass(frozen=True, slots=True)
class NodeInput:
    """The input of a node in a pass under `walk`: for each stream the `items` of a chunk, after the `context` of
    earlier ones; or, behind another part of the walk, what that made. With `final` no items follow."""

    walk: str
    items: Mapping[str, Items]
    context: Mapping[str, Items] = field(default_factory=dict)
    final: bool = False
    node: str = ""

    def after(self, made: WalkValues) -> "NodeInput":
        return NodeInput(self.walk, {name: (value,) for name, value in made.values.items()}, final=self.final)

    def of(self, edge: str) -> tuple[Items, Items]:
        """Return the items of a stream and their context."""
        return self.items.get(edge, ()), self.context.get(edge, ())


# Yields after each piece of work: an output, or None where the piece made none.
Pieces = Generator[bytes | None, None, WalkValues]


class NodeRun(Protocol):
    """The computation of one task. The outputs joined depend on the items alone, not on when they came. Output number n
    is the same in every attempt."""

    def feed(self, given: NodeInput) -> Pieces:
        """Run one node of the stage, in pieces that are short, since other tasks have their turn between them; return
        what it made for the nodes and stages behind it. An output that is delivered already may be empty. The generator
        is run to its end before the next, or dropped with the task. Raises RequestError for an input that is not
        one."""


class StageNode(Protocol):
    """A node with its weights. `identity` is a hash of everything that its outputs depend on besides their input and
    the kernels; `kind` and `sample_rate` are those of all its outputs. `one_per_chunk`: each chunk makes one output,
    from its walk, items and context alone, so that chunks whose outputs are delivered need not be taken again."""

    @property
    def identity(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def sample_rate(self) -> int | None: ...

    @property
    def one_per_chunk(self) -> bool: ...

    def begin(self, task: TaskInput) -> NodeRun:
        """Begin a task; nothing is computed yet. Raises RequestError for one that it cannot compute."""
