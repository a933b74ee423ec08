# SPDX-License-Identifier: Apache-2.0
"""Find the part of a prompt that need not be computed: its KV is cached, or another sequence is computing it now."""

import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.prefix import Key, KeysBelow, PrefixIndex, chain
from pontil.runtime.engine.sequences.prompt_keys import PromptKeys
from pontil.runtime.engine.sequences.sequence import Sequence

# Keys of a prompt that are made as soon as it comes, and those that are made before another's turn.
AT_ONCE, PORTION = 32, 128
# Keys for each second of a step: making them takes a few percent of it, and a few milliseconds at most.
KEYS_PER_SECOND, MOST = 30_000, 2048


class PrefixClaims:
    """The claims on keys that the `index` does not know. Of each key the oldest sequence that computes it has the
    claim. A sequence waits for the last block that it has in common with an older one's claims: it is in `woken` when
    that block is known, or nobody computes it any more. So one that waits costs a step nothing."""

    def __init__(self, index: PrefixIndex) -> None:
        self.index = index
        self.owners: dict[Key, Sequence] = {}
        self.waiters: dict[Key, list[Sequence]] = {}
        self.awaited: dict[Sequence, Key] = {}
        self.woken: list[Sequence] = []
        # The number of keys that each sequence has claimed.
        self.counts: dict[Sequence, int] = {}

    def __len__(self) -> int:
        return len(self.owners)

    def claim(self, sequence: Sequence, keys: PromptKeys) -> None:
        """Claim the missing blocks of the prompt."""
        blocks = self.index.blocks
        for key in keys.all:
            owner = self.owners.get(key)
            if key not in blocks and (owner is None or sequence.order < owner.order):
                self.release(key)
                self.owners[key] = sequence
                self.counts[sequence] = self.counts.get(sequence, 0) + 1

    def release(self, key: Key) -> Sequence | None:
        """Remove the claim on a key; return whose it was."""
        owner = self.owners.pop(key, None)
        if owner is not None:
            self.counts[owner] -= 1
            if not self.counts[owner]:
                del self.counts[owner]
        return owner

    def drop(self, sequence: Sequence) -> None:
        """Drop the claims of a sequence that computes no more, and its own waiting: those that wait for it compute the
        blocks themselves."""
        key = self.awaited.pop(sequence, None)
        if sequence in self.woken:
            self.woken.remove(sequence)
        if key is not None:
            self.waiters[key].remove(sequence)
            if not self.waiters[key]:
                del self.waiters[key]
        if sequence in self.counts and sequence.prefix.keys is not None:
            for key in sequence.prefix.keys.all:
                if self.owners.get(key) is sequence:
                    self.end(key)

    def end(self, key: Key) -> None:
        """End the claim on a key, which is known now or computed by nobody."""
        if key in self.owners:
            self.release(key)
        # Most prompts have nobody who waits for them.
        for sequence in self.waiters.pop(key, ()) if self.waiters else ():
            del self.awaited[sequence]
            self.woken.append(sequence)

    def hold(self, sequence: Sequence, keys: PromptKeys) -> bool:
        """Have a sequence wait if the first missing block is being computed for an older one. A sequence never waits
        for a newer one, which may have to let all others go first."""
        key = self.last_claimed(sequence, keys)
        if key is None:
            return False
        self.waiters.setdefault(key, []).append(sequence)
        self.awaited[sequence] = key
        return True

    def first_missing(self, keys: list[Key]) -> int:
        """Return the place of the first key that the index does not know. It is searched as if it had the beginning of
        whatever it has: where a block was evicted before others that follow it, the place may be behind these."""
        blocks = self.index.blocks
        return bisect_left(keys, True, key=lambda key: key not in blocks)

    def last_claimed(self, sequence: Sequence, keys: PromptKeys) -> Key | None:
        """Return the last key that the owner of the first missing block, an older sequence, computes for both; None if
        there is no such owner."""
        all_keys = keys.all
        first = self.first_missing(all_keys)
        owner = self.owners.get(all_keys[first]) if first < len(all_keys) else None
        if owner is None or owner.prefix.keys is None or not owner.order < sequence.order:
            return None
        for place in range(keys.common(owner.prefix.keys) - 1, first, -1):
            claimant = self.owners.get(all_keys[place])
            if claimant is not None and claimant.order < sequence.order:
                return all_keys[place]
        return all_keys[first]

    def wake(self) -> list[Sequence]:
        """Return the sequences that need not wait any more."""
        woken, self.woken = self.woken, []
        return woken


class KeyQueue:
    """Sequences whose prompts' keys are being made, a few in each step: it is not held up by any of them. Long ones
    take turns. Every other turn is for those that have had none, in scheduling order: a long prompt holds up no short
    one, nor any number of short ones a long one."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.made_at = clock, clock()
        self.new: list[Sequence] = []
        self.begun: deque[Sequence] = deque()
        self.new_is_next = True

    def __len__(self) -> int:
        return len(self.new) + len(self.begun)

    def take(self, sequence: Sequence, keys: PromptKeys) -> bool:
        """Make the keys of a sequence at once if they are few, else queue it. Return whether they are made."""
        if keys.left:
            keys.make(AT_ONCE)
        if keys.left:
            self.add(sequence)
        return not keys.left

    def add(self, sequence: Sequence) -> None:
        insort(self.new, sequence, key=attrgetter("order"))

    def remove(self, sequence: Sequence) -> None:
        if sequence in self.new:
            self.new.remove(sequence)
        elif sequence in self.begun:
            self.begun.remove(sequence)

    def make(self, in_step: bool) -> list[Sequence]:
        """Make some keys, as many as the time since the last call allows; unless they hold up a step, those of one
        sequence at least. Return the sequences that have them all now."""
        before, self.made_at = self.made_at, self.clock()
        if not self.new and not self.begun:
            return []
        budget = max(PORTION, min(MOST, int((self.made_at - before) * KEYS_PER_SECOND)))
        ready_sequences = list[Sequence]()
        while len(self) and (budget > 0 or not (in_step or ready_sequences)):
            sequence = self.next()
            assert sequence.prefix.keys is not None
            budget -= sequence.prefix.keys.make(PORTION if in_step else sequence.prefix.keys.left)
            if sequence.prefix.keys.left:
                self.begun.append(sequence)
            else:
                ready_sequences.append(sequence)
        return ready_sequences

    def next(self) -> Sequence:
        is_new = bool(self.new) and (self.new_is_next or not self.begun)
        self.new_is_next = not is_new
        return self.new.pop(0) if is_new else self.begun.popleft()


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
    would have in a prompt (rule C16). Blocks that end with states are `whole`: they are found at the very position that
    their states are of, be it the last of a block, of a prompt or of an answer.
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        enabled: bool = True,
        clock: Callable[[], float] = lambda: time.monotonic(),
        whole: bool = False,
    ) -> None:
        self.pool, self.block_size, self.enabled, self.whole = pool, block_size, enabled, whole
        self.claims, self.unkeyed = PrefixClaims(pool.index), KeyQueue(clock)
        self.queried = self.hit = 0

    def keys_of(self, sequence: Sequence) -> PromptKeys:
        return sequence.prefix.keys_of(sequence.prompt, self.block_size, self.whole)

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
        computed_tokens = min(len(blocks) * self.block_size, self.most(sequence))
        full_count, inside = divmod(computed_tokens, self.block_size)
        if self.whole:
            return self.with_end(sequence, blocks[:full_count])
        return PrefixHit(tuple(blocks[:full_count]), blocks[full_count] if inside else None, computed_tokens)

    def with_end(self, sequence: Sequence, blocks: list[int]) -> PrefixHit:
        """Return these first blocks of a sequence, and the longest known end behind them that it goes on from, if there
        is one."""
        known = len(blocks) * self.block_size
        for key, count in self.ends_behind(sequence, len(blocks), self.pool.index.blocks):
            source = self.pool.index.find(key)
            if source is not None:
                return PrefixHit(tuple(blocks), source, known + count)
        return PrefixHit(tuple(blocks), None, known)

    def ends_behind(
        self, sequence: Sequence, full: int, among: dict[Key, int] | KeysBelow
    ) -> Iterator[tuple[Key, int]]:
        """Yield the keys among these of ends that a sequence may go on from behind its first so many full blocks, the
        longest first, and how many tokens more each has."""
        keys = self.keys_of(sequence).ends(full)
        most = min(len(keys), sequence.length - 1 - full * self.block_size)
        for count in range(most, 0, -1):
            if keys[count - 1] in among:
                yield keys[count - 1], count

    def most(self, sequence: Sequence) -> int:
        """Return how many positions of a sequence may come from a cache. At least one is always left to compute."""
        most = min(len(sequence.prompt), sequence.length - 1)
        return most - most % self.block_size if self.whole else most

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
        place = len(hit.blocks) + (hit.source is not None and not self.whole)
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
        full, count = divmod(length, size)
        if count and end >= length and not self.whole:
            self.add(keys[-1], sequence.blocks[full], final=False)
        elif count and end == length:
            self.add(self.keys_of(sequence).ends(full)[count - 1], sequence.blocks[full], final=False)

    def register_answer(self, sequence: Sequence) -> None:
        """Register the blocks that the answer filled. The sequence has ended, and its blocks are still its own."""
        size, full = self.block_size, self.keys_of(sequence).full
        keys = self.keys_of(sequence).with_answer(sequence.output)
        whole, count = divmod(sequence.computed, size)
        keys.make(whole - full)
        for index in range(full, whole):
            self.add(keys.made[index], sequence.blocks[index])
        # Another choice may still write on in a block that is its own too.
        if self.whole and count and not self.pool.is_shared(sequence.blocks[whole]):
            parent, first = keys.made[whole - 1] if whole else keys.root, whole * size
            key = chain(parent, keys.prompt[first : sequence.computed], first, keys.adapted)
            self.add(key, sequence.blocks[whole])

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
