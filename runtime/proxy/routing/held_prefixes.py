# SPDX-License-Identifier: Apache-2.0
"""The proxy's knowledge of a worker's prefix cache. It may be wrong, which costs a worse choice of worker only."""

import struct
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from itertools import islice

from pontil.runtime.cache.prefix import KEY_BYTES
from pontil.runtime.cache.prefix_journal import MOST_PRESENT, SHORT_BYTES
from pontil.runtime.errors import MalformedFrame
from pontil.runtime.wire.messages import PrefixDelta

# Changes in one message; a worker sends a quarter.
MOST_READ = 16384
# Seconds until a worker that was asked to begin again, and did not, is asked once more.
ASK_AGAIN = 5.0


def short_keys(data: bytes) -> tuple[int, ...]:
    """Return the keys that lie one behind the other. Raises MalformedFrame."""
    count, remainder = divmod(len(data), SHORT_BYTES)
    if remainder or count > MOST_READ:
        raise MalformedFrame(f"{len(data)} bytes are no keys of {SHORT_BYTES} bytes, or more than {MOST_READ}")
    return struct.unpack(f"<{count}Q", data)


def short_key(key: bytes) -> int:
    """Return a block's key as workers tell it."""
    return int.from_bytes(key[:SHORT_BYTES], "little")


def short_keys_of(keys: bytes) -> tuple[int, ...]:
    """Return whole keys, which lie one behind the other, as workers tell them."""
    words = KEY_BYTES // SHORT_BYTES
    return struct.unpack(f"<{len(keys) // KEY_BYTES * words}Q", keys)[::words]


class HeldPrefixes:
    """The keys of the blocks that a worker has cached, at most `most`: those told first are forgotten first, but for
    the `leased` ones, which the worker keeps. `number` is that of the next message; after a gap nothing else is known
    until the worker begins again."""

    def __init__(self, most: int = MOST_PRESENT) -> None:
        self.most = most
        self.keys: dict[int, None] = {}
        # The keys of leases, and how many have each.
        self.leased: Counter[int] = Counter()
        self.number = self.changes = 0
        self.asked_at: float | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, message: PrefixDelta) -> bool:
        """Take a message; return False after a gap. Raises MalformedFrame, after which there is a gap."""
        self.changes += 1
        if message.number == 0:
            self.keys = dict.fromkeys(self.leased)
        elif message.number != self.number:
            self.forget()
            return False
        try:
            removed_keys, added_keys = short_keys(message.removed), short_keys(message.added)
        except MalformedFrame:
            self.forget()
            raise
        for key in removed_keys:
            self.keys.pop(key, None)
        self.keys.update(dict.fromkeys(added_keys))
        self.shrink()
        self.number, self.asked_at = message.number + 1, None
        return True

    def shrink(self) -> None:
        if len(self.keys) > self.most:
            old_keys = (key for key in self.keys if key not in self.leased)
            for key in list(islice(old_keys, len(self.keys) - self.most)):
                del self.keys[key]

    def lease(self, keys: Iterable[int]) -> None:
        """Take note of the keys of one more lease."""
        self.changes += 1
        new_keys = tuple(keys)
        self.leased.update(new_keys)
        self.keys.update(dict.fromkeys(new_keys))

    def end_lease(self, keys: Sequence[int]) -> None:
        """Take note that a lease is over. Its blocks stay until they are told to be gone."""
        self.changes += 1
        self.leased.subtract(keys)
        for key in keys:
            if self.leased[key] <= 0:
                del self.leased[key]

    def forget(self) -> None:
        self.keys = dict.fromkeys(self.leased)
        # No message has this number.
        self.number = -1

    def may_ask(self, now: float) -> bool:
        """Return whether it is time to ask the worker to begin again, and note that it was asked."""
        due = self.asked_at is None or now - self.asked_at > ASK_AGAIN
        if due:
            self.asked_at = now
        return due

    def count(self, keys: Sequence[int]) -> int:
        """Return how many of a prompt's leading keys are held."""
        return leading(keys, self.keys)

    def count_leased(self, keys: Sequence[int]) -> int:
        """Return how many of them are those of a lease."""
        return leading(keys, self.leased)


class MovingPrefixes(HeldPrefixes):
    """The keys of leases that no worker has now: of one that died, or let go before another one was heard. Nothing else
    is known here."""

    def end_lease(self, keys: Sequence[int]) -> None:
        super().end_lease(keys)
        for key in keys:
            if key not in self.leased:
                self.keys.pop(key, None)


def leading(keys: Sequence[int], held_keys: Container[int]) -> int:
    """Return how many leading keys are held. A block is cached with all that come before it, so a few of the keys
    tell."""
    low, high = 0, 1
    while high <= len(keys) and keys[high - 1] in held_keys:
        low, high = high, 2 * high
    high = min(high, len(keys) + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if keys[middle - 1] in held_keys:
            low = middle
        else:
            high = middle
    return low
