# SPDX-License-Identifier: Apache-2.0
"""A partition: nodes of a graph that advance together, one walk after the other."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from pontil.runtime.stages.graph.walk import Walk


class Authority(Enum):
    """The mover of a partition from walk to walk. STATE_MACHINE: each pass is followed by the one that
    `transitions` say. PRODUCER_TRIGGERED: the callbacks of the connections that drive it, of one producer."""

    STATE_MACHINE = "state machine"
    PRODUCER_TRIGGERED = "producer triggered"


@dataclass(frozen=True, slots=True)
class GraphPartition:
    """A partition. A walk that is not in `transitions` is followed by itself. `initial` is the first walk of a
    STATE_MACHINE partition. `terminal` is the walk that a PRODUCER_TRIGGERED one enters when its stream ends; one with
    a single walk need not name it."""

    name: str
    nodes: tuple[str, ...]
    walks: tuple[Walk, ...]
    authority: Authority = Authority.STATE_MACHINE
    initial: str | None = None
    terminal: str | None = None
    transitions: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_driven(self) -> bool:
        return self.authority is Authority.PRODUCER_TRIGGERED

    @property
    def last_walk(self) -> str | None:
        """The walk of the final chunk of its streams; None for a STATE_MACHINE partition: whichever it is in then."""
        if not self.is_driven:
            return None
        return self.terminal or self.walks[0].name

    @property
    def has_known_walks(self) -> bool:
        """True if the walk of a pass, and so how its stream is cut, follows from its number alone."""
        return not self.is_driven or len(self.walks) == 1

    def following(self, walk: str | None) -> str:
        """Return the walk of a STATE_MACHINE partition's next pass, after one under `walk` (None: of its first). A pure
        function of the pass before: whoever runs the passes, and whoever hears of them, has the same answer."""
        assert self.initial is not None, "a STATE_MACHINE partition has a first walk"
        return self.initial if walk is None else self.transitions.get(walk, walk)

    def walk_of_pass(self, number: int) -> str:
        """Return the walk of a STATE_MACHINE partition's pass of this number, from 0."""
        path = [self.following(None)]
        while (after := self.following(path[-1])) not in path:
            path.append(after)
        begin = path.index(after)
        return path[number if number < len(path) else begin + (number - begin) % (len(path) - begin)]

    def walk(self, name: str) -> Walk | None:
        return next((walk for walk in self.walks if walk.name == name), None)
