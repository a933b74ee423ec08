# SPDX-License-Identifier: Apache-2.0
"""Find the part of a prompt that need not be computed: its KV is cached, or another sequence is computing it now."""

from collections.abc import Iterator
from dataclasses import dataclass

from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.prefix import Key, chain, full_keys, root_key
from pontil.runtime.engine.sequence import PromptKeys, Sequence


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """The first `computed` positions are known: in `blocks`, which the sequence will only read, and beyond them in
    `source`, which has to be copied because the sequence will write into it."""

    blocks: tuple[int, ...] = ()
    source: int | None = None
    computed: int = 0


NOTHING = PrefixHit()


class PrefixCache:
    """The engine's view of the pool's prefix index.

    A sequence claims the blocks that it is going to compute: newer ones with the same prefix wait for them (`awaits`)
    instead of computing them a second time. Blocks of answers are found only where the KV of their positions has the
    bits that it would have in a prompt (rule C16).
    """

    def __init__(self, pool: BlockPool, block_size: int, enabled: bool = True) -> None:
        self.pool, self.block_size, self.enabled = pool, block_size, enabled
        self.claims: dict[Key, Sequence] = {}
        self.queried = self.hit = 0

    def keys_of(self, sequence: Sequence) -> PromptKeys:
        if sequence.keys is None:
            sequence.keys = self.make_keys(sequence)
        return sequence.keys

    def make_keys(self, sequence: Sequence) -> PromptKeys:
        prompt, salt = sequence.prompt, sequence.salt
        full = tuple(full_keys(prompt, salt, self.block_size))
        rest = prompt[len(full) * self.block_size :]
        return PromptKeys(full, chain(full[-1] if full else root_key(salt), rest) if rest else None)

    def may_use(self, sequence: Sequence) -> bool:
        """Return whether the sequence may use cached positions. They give no logits, so a sequence that wants prompt
        logprobs computes its whole prompt."""
        return self.enabled and sequence.params.prompt_logprobs is None

    def find(self, sequence: Sequence) -> PrefixHit:
        """The longest known prefix of a sequence. At least one position is always left to compute."""
        if not self.may_use(sequence):
            return NOTHING
        blocks = self.full_blocks(sequence)
        computed = len(blocks) * self.block_size
        tail = self.keys_of(sequence).tail
        if tail is not None and len(blocks) == len(self.keys_of(sequence).full):
            block = self.pool.index.find(tail)
            if block is not None:
                blocks.append(block)
                computed = len(sequence.prompt)
        computed = min(computed, sequence.length - 1)
        shared, inside = divmod(computed, self.block_size)
        return PrefixHit(tuple(blocks[:shared]), blocks[shared] if inside else None, computed)

    def find_full(self, sequence: Sequence, draws_first: bool = False) -> PrefixHit:
        """The longest known prefix in whole blocks: for a sequence whose prompt is computed elsewhere. It may be all of
        the prompt, unless the sequence `draws_first`: the first token needs a position to compute."""
        if not self.enabled:
            return NOTHING
        most = (len(sequence.prompt) - draws_first) // self.block_size
        blocks = self.full_blocks(sequence)[:most]
        return PrefixHit(tuple(blocks), None, len(blocks) * self.block_size)

    def full_blocks(self, sequence: Sequence) -> list[int]:
        blocks: list[int] = []
        for key in self.keys_of(sequence).full:
            block = self.pool.index.find(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def expected(self, sequence: Sequence) -> int:
        """Return how many positions of a waiting sequence are in whole blocks that the index knows now. Confirms and
        promises nothing."""
        if not self.may_use(sequence):
            return 0
        known, keys = self.pool.index.blocks, self.keys_of(sequence).full
        return self.block_size * next((count for count, key in enumerate(keys) if key not in known), len(keys))

    def awaits(self, sequence: Sequence) -> bool:
        """Return whether the first missing block is being computed for an older sequence. A sequence never waits for a
        newer one, which may have to let all others go first."""
        if not self.claims or not self.may_use(sequence):
            return False
        missing = next((key for key in every(self.keys_of(sequence)) if self.pool.index.find(key) is None), None)
        owner = None if missing is None else self.claims.get(missing)
        return owner is not None and owner.order < sequence.order

    def claim(self, sequence: Sequence) -> None:
        """Claim the missing blocks of the prompt. For each block the oldest sequence that computes it keeps the
        claim."""
        if self.enabled:
            for key in every(self.keys_of(sequence)):
                owner = self.claims.get(key)
                if self.pool.index.find(key) is None and (owner is None or sequence.order < owner.order):
                    self.claims[key] = sequence

    def drop(self, sequence: Sequence) -> None:
        """Drop the claims of a sequence that computes no more: sequences that wait for it compute the blocks
        themselves."""
        if sequence.keys is not None:
            for key in every(sequence.keys):
                if self.claims.get(key) is sequence:
                    del self.claims[key]

    def register(self, sequence: Sequence, start: int, end: int) -> None:
        """Register the prompt blocks that are complete now that positions [start, end) are computed."""
        length, size = len(sequence.prompt), self.block_size
        if not self.enabled or start >= length:
            return
        keys = self.keys_of(sequence)
        for index in range(start // size, min(end, length) // size):
            self.add(keys.full[index], sequence.blocks[index])
        if end >= length and keys.tail is not None:
            self.add(keys.tail, sequence.blocks[length // size], final=False)

    def register_answer(self, sequence: Sequence) -> None:
        """Register the blocks that the answer filled. The sequence has ended, and its blocks are still its own."""
        size, keys = self.block_size, self.keys_of(sequence).full
        tokens, key = sequence.prompt + sequence.output, keys[-1] if keys else root_key(sequence.salt)
        for index in range(len(keys), sequence.computed // size):
            key = chain(key, tokens[index * size : (index + 1) * size])
            self.add(key, sequence.blocks[index])

    def add(self, key: Key, block: int, final: bool = True) -> None:
        self.pool.index.add(key, block, final)
        self.claims.pop(key, None)

    def clear(self) -> None:
        """Forget all entries and counts."""
        self.pool.forget_prefixes()
        self.queried = self.hit = 0

    def count(self, sequence: Sequence, computed: int) -> None:
        """Count a first admission that found so many positions."""
        if self.may_use(sequence):
            self.queried += len(sequence.prompt)
            self.hit += computed


def every(keys: PromptKeys) -> Iterator[Key]:
    yield from keys.full
    if keys.tail is not None:
        yield keys.tail
