# SPDX-License-Identifier: Apache-2.0
"""The prefix-cache keys of a prompt's blocks, each made once."""

from __future__ import annotations

from dataclasses import dataclass

from pontil.runtime.cache.prefix import Key, root_key, some_keys


class PromptKeys:
    """The keys of one prompt: of its full blocks in order, then of the partial one at the end, if there is one. `made`
    has the first of them."""

    def __init__(self, prompt: list[int], salt: str, block_size: int) -> None:
        self.prompt, self.salt, self.block_size = prompt, salt, block_size
        self.made: list[Key] = []

    def __len__(self) -> int:
        return -(-len(self.prompt) // self.block_size)

    @property
    def full(self) -> int:
        """Return how many of them are those of full blocks."""
        return len(self.prompt) // self.block_size

    @property
    def left(self) -> int:
        """Return how many are not made yet."""
        return len(self) - len(self.made)

    @property
    def all(self) -> list[Key]:
        """Return all of them, which are made now if need be."""
        self.make(self.left)
        return self.made

    def make(self, most: int) -> int:
        """Make at most so many more; return how many."""
        start = len(self.made)
        count = min(most, len(self) - start)
        if count > 0:
            parent = self.made[-1] if self.made else root_key(self.salt)
            tokens = self.prompt[start * self.block_size : (start + count) * self.block_size]
            self.made += some_keys(parent, tokens, self.block_size)
        return max(0, count)

    def common(self, other: PromptKeys) -> int:
        """Return how many blocks two prompts have in common, as far as the keys of both are made. A key tells all
        tokens before it, so a few comparisons tell."""
        low, high = 0, min(len(self.made), len(other.made))
        while low < high:
            middle = (low + high) // 2
            if self.made[middle] == other.made[middle]:
                low = middle + 1
            else:
                high = middle
        return low


@dataclass(slots=True)
class SaltedPrefix:
    """A prompt as the beginning of others with the same `salt`: its `keys`, made when first asked for."""

    salt: str = ""
    keys: PromptKeys | None = None

    def keys_of(self, prompt: list[int], block_size: int) -> PromptKeys:
        if self.keys is None:
            self.keys = PromptKeys(prompt, self.salt, block_size)
        return self.keys
