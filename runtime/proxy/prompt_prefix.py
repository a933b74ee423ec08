# SPDX-License-Identifier: Apache-2.0
"""The keys of a prompt's blocks, computed as far as any worker has them cached."""

from collections.abc import Iterator, Sequence
from itertools import islice

from pontil.runtime.cache.prefix import Key, chain, full_keys, root_key
from pontil.runtime.proxy.held_prefixes import HeldPrefixes, short_key

# Blocks whose keys are computed in one turn of the event loop: less than a millisecond.
PORTION = 256


class PromptPrefix:
    """A prompt's keys, in order; `keys` grows while workers hold the last of it. The key of an unfilled last block
    comes at the end, and counts the tokens that are left."""

    def __init__(self, prompt: Sequence[int], salt: str, block_size: int) -> None:
        self.prompt, self.salt, self.block_size = prompt, salt, block_size
        self.keys: list[int] = []
        self.source = self.every_key()
        self.is_complete = False

    def every_key(self) -> Iterator[Key]:
        key = root_key(self.salt)
        for key in full_keys(self.prompt, self.salt, self.block_size):  # noqa: B007
            yield key
        rest = len(self.prompt) % self.block_size
        if rest:
            yield chain(key, self.prompt[-rest:])

    def grow(self, caches: Sequence[HeldPrefixes], portion: int = PORTION) -> bool:
        """Compute more keys, at most `portion`, as long as a cache holds the last one. Return whether there may be more
        to find."""
        left = portion
        while left and self.may_find(caches):
            count = min(left, len(self.keys) or 1)
            more = [short_key(key) for key in islice(self.source, count)]
            self.is_complete = len(more) < count
            self.keys += more
            left -= count
        return self.may_find(caches)

    def may_find(self, caches: Sequence[HeldPrefixes]) -> bool:
        """Return whether a key that is not computed yet may be in a cache."""
        if self.is_complete:
            return False
        return any(cache.keys and (not self.keys or self.keys[-1] in cache.keys) for cache in caches)

    def found(self, cache: HeldPrefixes) -> int:
        """Return how many tokens of the prompt need not be computed where this is cached; the last one always is."""
        return min(cache.count(self.keys) * self.block_size, len(self.prompt) - 1)
