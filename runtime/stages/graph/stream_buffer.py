# SPDX-License-Identifier: Apache-2.0
"""The consumer's end of one stream of one request: items in any order of arrival, chunks in order of index (E10, E11).

Positions in the stream go from `ran` (everything before it has run) over `taken` (everything before it was popped) to
the items that wait. An item is kept until it has run and no later chunk can show it again as context. A marker at an
index says that no item from there on belongs to the walk before it; so does an item that is tagged with another walk,
and so does the end of the stream. Each of them makes the items before it ready, however few they are.
"""

from collections.abc import Collection
from dataclasses import dataclass

from pontil.runtime.errors import PontilError
from pontil.runtime.stages.graph.connection import Connection


class StreamFault(PontilError):
    """A stream that contradicts itself or goes beyond what its consumer allowed. Its request cannot go on from here."""


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A place between two chunks, enough for another worker to go on from there. `index`: of the next item. `walk`: of
    the chunk before, None before the first; `since`: the index at which that walk began. `finished`: the final chunk
    lies before."""

    index: int = 0
    walk: str | None = None
    since: int = 0
    finished: bool = False

    @property
    def order(self) -> tuple[int, bool]:
        return self.index, self.finished


def later(one: StreamPosition, other: StreamPosition) -> StreamPosition:
    """Return the later of two positions in one stream (E9: positions never go back)."""
    return other if other.order > one.order else one


@dataclass(frozen=True, slots=True)
class TaggedItem:
    """An item that has arrived. `walk` is its tag: the consumer's walk that it is for, None if the consumer is a
    STATE_MACHINE partition. `payload` is not looked at here."""

    walk: str | None
    payload: object


@dataclass(frozen=True, slots=True)
class Chunk:
    """Items for one pass of the consumer, all of one walk: new `items` after the `context` of earlier ones. Full chunks
    come before the final one, which has the rest and may be empty: how a stream is cut follows from its items alone. A
    chunk is popped only while nothing of another walk is taken and has not run (E8)."""

    walk: str | None
    items: tuple[object, ...]
    context: tuple[object, ...]
    before: StreamPosition
    after: StreamPosition

    @property
    def final(self) -> bool:
        return self.after.finished


class StreamBuffer:
    """One stream. `last_walk` is the consumer's walk at the end of the stream; None: the one it is in. `hosted` are the
    consumer's walks on this worker, None for all: chunks of other walks are another worker's and are never popped."""

    def __init__(
        self, connection: Connection, last_walk: str | None = None, hosted: Collection[str] | None = None
    ) -> None:
        self.policy, self.capacity, self.label = connection.policy, connection.capacity, connection.label
        self.last_walk = last_walk
        self.hosted = None if hosted is None else frozenset(hosted)
        self.items = dict[int, TaggedItem]()
        self.markers = dict[int, str | None]()
        self.ends_at: int | None = None
        self.taken = self.ran = StreamPosition()
        self.repeated = 0

    @property
    def next_index(self) -> int:
        """The index of the first item that has not run (E9)."""
        return self.ran.index

    @property
    def keep_from(self) -> int:
        """The first item that can be needed again. Whoever keeps items for a replay may drop those before it."""
        since, index = self.ran.since, self.ran.index
        return max(since, index - self.policy.context(index - since, 0))

    @property
    def finished(self) -> bool:
        """True once the final chunk was popped, here or elsewhere."""
        return self.taken.finished

    @property
    def next_walk(self) -> str | None:
        """The walk of the next chunk as far as it is known."""
        index = self.taken.index
        if index in self.items:
            return self.items[index].walk
        if index == self.ends_at:
            return self.taken.walk if self.last_walk is None else self.last_walk
        return self.markers.get(index)

    @property
    def leaves(self) -> str | None:
        """The walk that the stream enters next, if another worker hosts that walk (E14)."""
        walk = self.next_walk
        return None if self.finished or self.is_hosted(walk) else walk

    def is_hosted(self, walk: str | None) -> bool:
        return self.hosted is None or walk is None or walk in self.hosted

    def put(self, index: int, walk: str | None, payload: object) -> bool:
        """Take an item; return whether it was kept. The first arrival of an index wins; others are counted. Raises
        StreamFault for an item after the end, and for more items than the producer is allowed to send."""
        if index in self.items or index < self.keep_from:
            self.repeated += 1
            return False
        if self.ends_at is not None and index >= self.ends_at:
            raise StreamFault(f"item {index} of {self.label} came although the stream ends before {self.ends_at}")
        if len(self.items) >= self.capacity + self.policy.most_context:
            raise StreamFault(f"{self.label} holds {len(self.items)} items, and its producer sends more")
        self.items[index] = TaggedItem(walk, payload)
        return True

    def mark(self, index: int, walk: str | None) -> None:
        """Take a marker: items from `index` on are for `walk`, or a later one. Repeating it changes nothing."""
        if index < self.ran.index:
            return
        if index not in self.markers and len(self.markers) > self.capacity:
            raise StreamFault(f"{self.label} holds {len(self.markers)} markers, and its producer sends more")
        self.markers[index] = walk

    def end(self, index: int) -> None:
        """Take the end of the stream: the last item is the one before `index`. Repeating it changes nothing."""
        if self.ends_at not in (None, index):
            raise StreamFault(f"{self.label} ends before {index}, but was said to end before {self.ends_at}")
        if index < max(self.taken.index, *(item + 1 for item in self.items), 0):
            raise StreamFault(f"{self.label} is said to end before {index}, but has later items")
        self.ends_at = index

    def pop(self) -> Chunk | None:
        """Return the next chunk if it is ready. Readiness and finality follow from the chunk's own walk."""
        here, walk = self.taken, self.next_walk
        if here.finished or not self.is_hosted(walk):
            return None
        if here.index not in self.items and here.index != self.ends_at:
            return None
        since = here.since if walk == here.walk and here.index not in self.markers else here.index
        needed = self.policy.needed(here.index - since)
        count = self.ready(here.index, walk, needed)
        if count is None:
            return None
        end = here.index + count
        context = range(max(since, here.index - self.policy.context(here.index - since, count)), here.index)
        # After a take-over the context has to be sent again.
        if any(index not in self.items for index in context):
            return None
        # Not of a full chunk: whether the end is known by then would decide how many chunks there are.
        final = count < needed and end == self.ends_at and (self.last_walk is None or walk == self.last_walk)
        self.taken = StreamPosition(end, walk, since, final)
        return Chunk(
            walk,
            items=tuple(self.items[index].payload for index in range(here.index, end)),
            context=tuple(self.items[index].payload for index in context),
            before=here,
            after=self.taken,
        )

    def ready(self, first: int, walk: str | None, needed: int) -> int | None:
        """Return the number of items of the chunk that begins at an index; None if it has to wait for more."""
        end = first
        while end < first + needed and end in self.items and self.items[end].walk == walk:
            if end > first and end in self.markers:
                break
            end += 1
        is_closed = end in self.markers and end > first or end in self.items or end == self.ends_at
        return end - first if is_closed or end == first + needed else None

    def record(self, chunk: Chunk) -> None:
        """Record that the consumer's node ran with a chunk (E9). Called after it ran, never when it takes the chunk."""
        self.hear(chunk.after)

    def hear(self, position: StreamPosition) -> None:
        """Take the position of the worker that runs: it moves a worker that waits, and never one that is ahead."""
        if self.ends_at is not None and position.index > self.ends_at:
            raise StreamFault(f"{self.label} was read to {position.index}, but ends before {self.ends_at}")
        self.ran = later(self.ran, position)
        self.taken = later(self.taken, position)
        for index in [item for item in self.items if item < self.keep_from]:
            del self.items[index]
        for index in [marker for marker in self.markers if marker < self.ran.index]:
            del self.markers[index]
