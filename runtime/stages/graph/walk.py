# SPDX-License-Identifier: Apache-2.0
"""A walk: a named sub-graph of a model's nodes, which a partition runs in one pass."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Node:
    """One component of a model, by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Sequential:
    """Parts of a walk that run one after the other."""

    parts: tuple["WalkPart", ...]


@dataclass(frozen=True, slots=True)
class Parallel:
    """Parts of a walk that do not wait for each other. The walk goes on when all have ended."""

    parts: tuple["WalkPart", ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """A part of a walk that is repeated, each round with what the one before made: until a node of it stops the loop,
    and `times` times at most. A node stops the innermost loop around it."""

    body: "WalkPart"
    times: int | None = None


WalkPart: TypeAlias = Node | Sequential | Parallel | Loop


@dataclass(frozen=True, slots=True)
class Walk:
    """A walk. Its name is unique in its graph."""

    name: str
    body: WalkPart

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes that run, each once, in the order of the walk."""
        return tuple(dict.fromkeys(names_of(self.body)))


def names_of(part: WalkPart) -> Iterator[str]:
    """Yield the name of each node of a part, in order."""
    if isinstance(part, Node):
        yield part.name
    elif isinstance(part, Loop):
        yield from names_of(part.body)
    else:
        for one in part.parts:
            yield from names_of(one)


def can_stop(part: WalkPart) -> bool:
    """Return whether a part has a node that is in no loop of its own."""
    return isinstance(part, Node) or not isinstance(part, Loop) and any(map(can_stop, part.parts))


def mistakes_of(part: WalkPart) -> Iterator[str]:
    """Yield what is wrong with the structure of a part."""
    if isinstance(part, Loop):
        if part.times is not None and part.times < 1:
            yield f"a Loop of {part.times} rounds: give a number from 1, or None"
        if part.times is None and not can_stop(part.body):
            yield "a Loop that no node can stop, as each is in a Loop of its own: give a number of rounds"
        yield from mistakes_of(part.body)
    elif isinstance(part, Sequential | Parallel):
        if not part.parts:
            yield f"an empty {type(part).__name__}: give it at least one part"
        if isinstance(part, Parallel):
            counts = Counter(name for one in part.parts for name in set(names_of(one)))
            yield from (f"a Parallel with '{name}' in two parts" for name, count in counts.items() if count > 1)
        for one in part.parts:
            yield from mistakes_of(one)
