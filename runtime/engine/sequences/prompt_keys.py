# SPDX-License-Identifier: Apache-2.0
"""The prefix-cache keys of a prompt's blocks, each made once."""

from __future__ import annotations

from dataclasses import dataclass

from pontil.gpu_ops.parameters.adapters import NO_ADAPTER
from pontil.runtime.cache.adaptation import NOT_ADAPTED, Adaptation
from pontil.runtime.cache.prefix import Key, end_keys, root_key, some_keys


class PromptKeys:
    """The keys of one prompt, which is computed as `adapted` says: of its full blocks in order, then, unless blocks are
    `whole` ones or none, of the partial one at the end, if there is one. `made` has the first of them."""

    def __init__(
        self, prompt: list[int], root: Key, block_size: int, whole: bool = False, adapted: Adaptation = NOT_ADAPTED
    ) -> None:
        self.prompt, self.root, self.block_size, self.whole, self.adapted = prompt, root, block_size, whole, adapted
        self.made: list[Key] = []
        # The last answer of `ends`, and to which question.
        self.behind: tuple[int, list[Key]] | None = None

    def __len__(self) -> int:
        return self.full if self.whole else -(-len(self.prompt) // self.block_size)

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
            parent, first = self.made[-1] if self.made else self.root, start * self.block_size
            tokens = self.prompt[first : first + count * self.block_size]
            self.made += some_keys(parent, tokens, self.block_size, first, self.adapted)
        return max(0, count)

    def ends(self, full: int) -> list[Key]:
        """Return the keys of ends of a text behind the first so many full blocks, by how many tokens more they have,
        from one on."""
        if self.behind is None or self.behind[0] != full:
            start = full * self.block_size
            parent = self.all[full - 1] if full else self.root
            tokens = self.prompt[start : start + self.block_size - 1]
            self.behind = full, end_keys(parent, tokens, start, self.adapted)
        return self.behind[1]

    def with_answer(self, tokens: list[int]) -> PromptKeys:
        """Return the keys of the prompt with these tokens of an answer behind it."""
        longer = PromptKeys(self.prompt + tokens, self.root, self.block_size, self.whole, self.adapted)
        longer.made = self.all[: self.full]
        return longer

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


@dataclass(frozen=True, slots=True)
class UsedAdapter:
    """The adapter with which a sequence is computed: the digest of its files, and its number among those of the
    model."""

    digest: str = ""
    number: int = NO_ADAPTER


NO_USED_ADAPTER = UsedAdapter()


@dataclass(slots=True)
class SaltedPrefix:
    """A prompt as the beginning of others with the same `salt`, computed with the same `adapter` from the position
    `start` on: its `keys`, made when first asked for. Its rows from there on are computed with that adapter and their
    keys are of its digest, and no other place says which it is. Where rows of the prompt are made of more than their
    ids, `contents` has in some of their places what names that (`runtime/cache/prefix.py`)."""

    salt: str = ""
    adapter: UsedAdapter = NO_USED_ADAPTER
    start: int = 0
    keys: PromptKeys | None = None
    contents: list[int] | None = None

    @property
    def adapted(self) -> Adaptation:
        return Adaptation(self.adapter.digest, self.start) if self.adapter.digest else NOT_ADAPTED

    def behind(self, tokens: int) -> SaltedPrefix:
        """Return that of a text which is the same without its first so many tokens, however it goes on."""
        return SaltedPrefix(self.salt, self.adapter, max(0, self.start - tokens))

    def keys_of(self, prompt: list[int], block_size: int, whole: bool = False) -> PromptKeys:
        if self.keys is None:
            contents = prompt if self.contents is None else self.contents
            self.keys = PromptKeys(contents, root_key(self.salt), block_size, whole, self.adapted)
        return self.keys
