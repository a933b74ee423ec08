# SPDX-License-Identifier: Apache-2.0
"""One consumer worker's subscription to an edge: the walks that it hosts, and the items on their way to it."""

from collections.abc import Collection
from dataclasses import dataclass, field

from pontil.runtime.stages.streams.stream_memory import StagedItem
from pontil.runtime.wire.messages import StreamItem, Subscribe

# Seconds after which a message that should have been answered is sent again.
REPEAT = 1.0


@dataclass(slots=True)
class SentItem:
    """An item that the subscriber may read now, and was told of at `sent_at`."""

    staged: StagedItem
    message: StreamItem
    sent_at: float


@dataclass(slots=True, eq=False)
class Subscription:
    """`consumed`: the subscriber has consumed all items before it. It wants those from `wanted_from` on, except `taken`
    ones, which have arrived; a chunk may show consumed items again. Items before `cursor` need not be looked at again,
    and marks before `marked` neither. The subscriber was heard of at `heard`, and asked for a sign of life at
    `asked`."""

    peer: str
    request_id: str
    attempt: int
    walks: frozenset[str]
    heard: float
    asked: float
    consumed: int = 0
    wanted_from: int = 0
    cursor: int = 0
    marked: int = 0
    taken: set[int] = field(default_factory=set)
    sent: dict[int, SentItem] = field(default_factory=dict)

    @classmethod
    def of(cls, message: Subscribe, now: float) -> "Subscription":
        return cls(message.sender, message.request_id, message.attempt, frozenset(message.walks), now, now)

    def is_replaced_by(self, message: Subscribe) -> bool:
        """Return whether it ends with this one: of a later attempt, or of the same worker for other walks."""
        changed = self.peer == message.sender and self.walks != frozenset(message.walks)
        return changed or self.attempt < message.attempt

    def wants(self, index: int, walk: str) -> bool:
        """Return whether an item is to be sent, that is neither there nor on its way."""
        hosted = not self.walks or not walk or walk in self.walks
        return hosted and index >= self.wanted_from and index not in self.taken and index not in self.sent

    def arrived(self, indices: Collection[int], wanted_from: int, consumed: int) -> list[StagedItem]:
        """Record what is there, and what is consumed. Return the items that need no blocks any more."""
        self.consumed = max(self.consumed, consumed)
        self.wanted_from = max(self.wanted_from, wanted_from)
        self.taken.update(index for index in indices if index in self.sent)
        self.taken = {index for index in self.taken if index >= self.wanted_from}
        over = [index for index in self.sent if index < self.wanted_from or index in self.taken]
        return [self.sent.pop(index).staged for index in over]

    def damaged(self, named: list[list[int]]) -> list[StagedItem]:
        """Return the items that did not arrive as they were sent: they have to be sent in other blocks. One that was
        sent in other blocks since is not among them."""
        known = {(index, one.staged.epoch): index for index, one in self.sent.items()}
        bad = {known[each[0], each[1]] for each in named if len(each) == 2 and (each[0], each[1]) in known}
        if bad:
            self.cursor = min(self.cursor, *bad)
        return [self.sent.pop(index).staged for index in sorted(bad)]

    @property
    def blocks(self) -> int:
        """The blocks that hold items for the subscriber."""
        return sum(len(one.staged.blocks) for one in self.sent.values())
