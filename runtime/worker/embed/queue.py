# SPDX-License-Identifier: Apache-2.0
"""The texts that wait in a worker to be embedded."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from pontil.runtime.wire.messages import Embed


@dataclass(frozen=True, slots=True)
class Waiting:
    """A text, and when it arrived, in seconds of the worker's clock."""

    message: Embed
    arrived: float

    @property
    def key(self) -> tuple[str, int]:
        return self.message.request_id, self.message.attempt

    def is_late(self, now: float) -> bool:
        deadline = self.message.deadline
        return deadline is not None and now >= self.arrived + deadline


class EmbeddingQueue:
    """Texts in the order of priority, then of arrival. A batch has at most `most_tokens`, or one longer text.

    `waiting` has exactly the texts that will be computed; `order` may also hold some that were removed."""

    def __init__(self, most_tokens: int) -> None:
        self.most_tokens = most_tokens
        self.waiting: dict[tuple[str, int], Waiting] = {}
        self.order: list[tuple[int, int, tuple[str, int]]] = []
        self.numbers = count()

    def __len__(self) -> int:
        return len(self.waiting)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self.waiting.values())

    def push(self, one: Waiting) -> None:
        """Add a text; one that is there already stays as it is."""
        if one.key not in self.waiting:
            self.waiting[one.key] = one
            heapq.heappush(self.order, (one.message.priority, next(self.numbers), one.key))

    def next_batch(self) -> list[Waiting]:
        """Remove and return the texts of the next step."""
        batch: list[Waiting] = []
        tokens = 0
        while self.order:
            one = self.waiting.get(self.order[0][2])
            if one is not None:
                tokens += len(one.message.prompt)
                if batch and tokens > self.most_tokens:
                    break
                batch.append(self.waiting.pop(one.key))
            heapq.heappop(self.order)
        return batch

    def cancel(self, request_id: str, attempt: int) -> None:
        """Remove a text; an unknown one is no error."""
        self.waiting.pop((request_id, attempt), None)

    def take_late(self, now: float) -> list[Waiting]:
        """Remove and return the texts whose deadline has passed."""
        return [self.waiting.pop(one.key) for one in list(self) if one.is_late(now)]

    def take_of(self, proxy: str) -> list[Waiting]:
        """Remove and return the texts that this proxy sent."""
        return [self.waiting.pop(one.key) for one in list(self) if one.message.sender == proxy]

    def clear(self) -> list[Waiting]:
        """Remove and return all texts."""
        gone = list(self)
        self.waiting.clear()
        self.order.clear()
        return gone
