# SPDX-License-Identifier: Apache-2.0
"""Find the part of a prompt that need not be computed: its KV is cached, or another sequence is computing it now."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.prefix import Key, chain, root_key
from pontil.runtime.engine.prefixes.claims import PrefixClaims
from pontil.runtime.engine.prefixes.key_queue import KeyQueue
from pontil.runtime.engine.sequences.prompt_keys import PromptKeys
from pontil.runtime.engine.sequences.sequence import Sequence


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

    A sequence claims the blocks that it is going to compute: newer ones with the same prefix wait for them instead of
    computing them a second time. Blocks of answers are found only where the KV of their positions has the bits that it
    would have in a prompt (rule C16).
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        enabled: bool = True,
        clock: Callable[[], float] = lambda: time.monotonic(),
    ) -> None:
        self.pool, self.block_size, self.enabled = pool, block_size, enabled
        self.claims, self.unkeyed = PrefixClaims(pool.index), KeyQueue(clock)
        self.queried = self.hit = 0

    def keys_of(self, sequence: Sequence) -> PromptKeys:
        return sequence.prefix.keys_of(sequence.prompt, self.block_size)

    def prepare(self, sequence: Sequence) -> bool:
        """Return whether it can be known at once what is cached of a sequence that begins to wait; else `released` has
        it when that can be known."""
        return not self.enabled or self.unkeyed.take(sequence, self.keys_of(sequence))

    def holds_back(self, sequence: Sequence) -> bool:
        """Return whether a sequence is to wait for what an older one computes. Then `released` has it when that is
        computed, or will not be."""
        return self.may_use(sequence) and len(self.claims) > 0 and self.claims.hold(sequence, self.keys_of(sequence))

    def released(self, in_step: bool) -> list[Sequence]:
        """Return the sequences that need not wait for a prefix, or for their keys, any more. Keys are made here: as
        many as fit between two steps, or where none is held up those of one sequence at least."""
        return self.claims.wake() + self.unkeyed.make(in_step)

    def may_use(self, sequence: Sequence) -> bool:
        """Return whether the sequence may use cached positions. They give no logits, so a sequence that wants prompt
        logprobs computes its whole prompt."""
        return self.enabled and sequence.params.prompt_logprobs is None

    def find(self, sequence: Sequence) -> PrefixHit:
        """The longest known prefix of a sequence. At least one position is always left to compute."""
        if not self.may_use(sequence):
            return NOTHING
        blocks = self.pool.index.leading(self.keys_of(sequence).all)
        computed = min(len(blocks) * self.block_size, len(sequence.prompt), sequence.length - 1)
        shared, inside = divmod(computed, self.block_size)
        return PrefixHit(tuple(blocks[:shared]), blocks[shared] if inside else None, computed)

    def find_full(self, sequence: Sequence, draws_first: bool = False) -> PrefixHit:
        """The longest known prefix in whole blocks: for a sequence whose prompt is computed elsewhere. It may be all of
        the prompt, unless the sequence `draws_first`: the first token needs a position to compute."""
        if not self.enabled:
            return NOTHING
        most = (len(sequence.prompt) - draws_first) // self.block_size
        blocks = self.pool.index.leading(self.keys_of(sequence).all[:most])
        return PrefixHit(tuple(blocks), None, len(blocks) * self.block_size)

    def missing(self, sequence: Sequence, hit: PrefixHit) -> Key | None:
        """Return the key of the first block that was not found of a prompt, if any."""
        keys = [] if sequence.prefix.keys is None else sequence.prefix.keys.made
        place = len(hit.blocks) + (hit.source is not None)
        return keys[place] if place < len(keys) else None

    def expected(self, sequence: Sequence) -> int:
        """Return how many positions of a waiting sequence are in whole blocks that the index knows now, as far as keys
        are made. Confirms and promises nothing."""
        keys = sequence.prefix.keys
        if not self.may_use(sequence) or keys is None:
            return 0
        return self.block_size * min(self.claims.first_missing(keys.made), keys.full)

    def claim(self, sequence: Sequence) -> None:
        """Claim the missing blocks of the prompt. For each block the oldest sequence that computes it keeps the
        claim."""
        if self.enabled and sequence.computed < len(sequence.prompt):
            self.claims.claim(sequence, self.keys_of(sequence))

    def drop(self, sequence: Sequence) -> None:
        """Drop the claims of a sequence that computes no more, and its own waiting for keys or a prefix."""
        self.claims.drop(sequence)
        self.unkeyed.remove(sequence)

    def register(self, sequence: Sequence, start: int, end: int) -> None:
        """Register the prompt blocks that are complete now that positions [start, end) are computed."""
        length, size = len(sequence.prompt), self.block_size
        if not self.enabled or start >= length:
            return
        keys = self.keys_of(sequence).all
        for index in range(start // size, min(end, length) // size):
            self.add(keys[index], sequence.blocks[index])
        if end >= length and length % size:
            self.add(keys[-1], sequence.blocks[length // size], final=False)

    def register_answer(self, sequence: Sequence) -> None:
        """Register the blocks that the answer filled. The sequence has ended, and its blocks are still its own."""
        size, keys = self.block_size, self.keys_of(sequence)
        tokens, full = sequence.prompt + sequence.output, keys.full
        key = keys.all[full - 1] if full else root_key(sequence.prefix.salt)
        for index in range(full, sequence.computed // size):
            key = chain(key, tokens[index * size : (index + 1) * size])
            self.add(key, sequence.blocks[index])

    def add(self, key: Key, block: int, final: bool = True) -> None:
        self.pool.index.add(key, block, final)
        self.claims.end(key)

    def clear(self) -> None:
        """Forget all entries and counts."""
        self.pool.forget_prefixes()
        self.queried = self.hit = 0

    def count(self, sequence: Sequence, computed: int) -> None:
        """Count a first admission that found so many positions."""
        if self.may_use(sequence):
            self.queried += len(sequence.prompt)
            self.hit += computed
