# SPDX-License-Identifier: Apache-2.0
"""The keys of a prompt's blocks, computed as far as any worker has them cached."""

from collections.abc import Iterator, Sequence
from itertools import islice

from pontil.runtime.cache.adaptation import NOT_ADAPTED, Adaptation
from pontil.runtime.cache.prefix import STATE_TOKENS, Key, chain, end_keys, full_keys, root_key
from pontil.runtime.proxy.routing.held_prefixes import HeldPrefixes, short_key

# Blocks whose keys are computed in one turn of the event loop: less than a millisecond.
PORTION = 256


class PromptPrefix:
    """A prompt's keys, in order; `keys` grows while workers hold the last of it. The key of an unfilled last block
    comes at the end, and counts the tokens that are left. Blocks of models with states are larger than any others, and
    found whole, or unfilled at any position: behind those of `keys` that a worker has it may have one more."""

    def __init__(self, prompt: Sequence[int], salt: str, block_size: int, adapted: Adaptation = NOT_ADAPTED) -> None:
        self.prompt, self.salt, self.block_size, self.adapted = prompt, salt, block_size, adapted
        self.keys: list[int] = []
        self.has_states = block_size >= STATE_TOKENS
        # Where there are states: the keys of full blocks, and those of the ends behind so many of them.
        self.full: list[Key] = []
        self.ends: dict[int, list[int]] = {}
        self.source = self.every_key()
        self.is_complete = False

    def every_key(self) -> Iterator[Key]:
        key = root_key(self.salt)
        for key in full_keys(self.prompt, self.salt, self.block_size, self.adapted):
            if self.has_states:
                self.full.append(key)
            yield key
        tail_length = len(self.prompt) % self.block_size
        if tail_length and not self.has_states:
            yield chain(key, self.prompt[-tail_length:], len(self.prompt) - tail_length, self.adapted)

    def grow(self, caches: Sequence[HeldPrefixes], portion: int = PORTION) -> bool:
        """Compute more keys, at most `portion`, as long as a cache holds the last one. Return whether there may be more
        to find."""
        budget = portion
        while budget and self.may_find(caches):
            count = min(budget, len(self.keys) or 1)
            new_keys = [short_key(key) for key in islice(self.source, count)]
            self.is_complete = len(new_keys) < count
            self.keys += new_keys
            budget -= count
        return self.may_find(caches)

    def may_find(self, caches: Sequence[HeldPrefixes]) -> bool:
        """Return whether a key that is not computed yet may be in a cache."""
        if self.is_complete:
            return False
        if not self.keys:
            return any(len(cache) > 0 for cache in caches)
        last = self.keys[-1]
        return any(last in cache.keys for cache in caches)

    def found_in(self, caches: Sequence[HeldPrefixes]) -> list[int]:
        """Return for each cache how many tokens of the prompt need not be computed where it is; the last one always is.
        Many workers that hold a prefix hold the same part of it, so each is asked for what the one before it has."""
        keys, most = self.keys, len(self.prompt) - 1
        token_counts, count, tokens = list[int](), 0, 0
        # The last key that is held, and the first that is not.
        last, after = None, keys[0] if keys else None
        for cache in caches:
            held_keys = cache.keys
            if (count and last not in held_keys) or after in held_keys:
                count = cache.count(keys)
                tokens = min(count * self.block_size, most)
                last, after = keys[count - 1], keys[count] if count < len(keys) else None
            token_counts.append(self.with_end(cache, count) if self.has_states and len(cache) else tokens)
        return token_counts

    def with_end(self, cache: HeldPrefixes, count: int) -> int:
        """Return how many tokens need not be computed where so many full blocks are cached, with the longest end of
        another text behind them that the prompt goes on from."""
        size, most = self.block_size, len(self.prompt) - 1
        count = min(count, most // size)
        ends = self.ends.get(count)
        if ends is None:
            parent, first = self.full[count - 1] if count else root_key(self.salt), count * size
            tokens = self.prompt[first : min(most, first + size - 1)]
            ends = self.ends[count] = [short_key(key) for key in end_keys(parent, tokens, first, self.adapted)]
        return count * size + next((place for place in range(len(ends), 0, -1) if ends[place - 1] in cache.keys), 0)

    def found(self, cache: HeldPrefixes) -> int:
        """Return how many tokens of the prompt need not be computed where this is cached."""
        return self.found_in([cache])[0]
