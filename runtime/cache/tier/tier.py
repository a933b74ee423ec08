# SPDX-License-Identifier: Apache-2.0
"""The interface of one tier: a bounded store of whole KV blocks by their key in the prefix index."""

from collections.abc import Set
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pontil.runtime.cache.prefix import Key

# The bytes of one block, uint8 [block_bytes].
Block: TypeAlias = NDArray[np.uint8]
NO_KEYS: frozenset[Key] = frozenset()


class KVTier(Protocol):
    """A tier of at most `capacity` blocks. Conservation: each key has one slot, and slots in use + free = capacity.

    One thread makes all calls but `in` and `known`, which any thread may make: the answer may be old as soon as it is
    given. All others raise OSError for what the medium cannot do; the tier is not used after that.
    """

    name: str
    capacity: int

    def __contains__(self, key: Key) -> bool:
        """Return whether there is a block with this key."""

    def __len__(self) -> int:
        """Return how many blocks there are."""

    def known(self) -> list[Key]:
        """Return all keys, the least recently used first."""

    def touch(self, key: Key) -> None:
        """Mark a block that is here as just used."""

    def put(self, key: Key, block: Block, digest: int) -> None:
        """Store a block that is not here. There must be a free slot."""

    def get(self, key: Key, into: Block) -> int | None:
        """Copy a block and return the digest that it was stored with; None where it is not here, or not whole."""

    def drop(self, key: Key) -> None:
        """Forget a block, if it is here."""

    def eldest(self, pinned: Set[Key] = NO_KEYS) -> Key | None:
        """Return the least recently used key but the `pinned` ones, if no slot is free; else None. There are fewer of
        these than slots."""

    def probe(self, count: int, into: Block) -> float:
        """Return the seconds to read so many blocks, as `get` would read blocks that were not used for long. It changes
        no block of the tier."""

    def close(self) -> None:
        """Give back what the tier holds of the machine. What is durable stays."""
