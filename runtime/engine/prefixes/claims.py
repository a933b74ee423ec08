# SPDX-License-Identifier: Apache-2.0
"""The blocks of prompts that sequences are going to compute, and the sequences that wait for them."""

from bisect import bisect_left

from pontil.runtime.cache.prefix import Key, PrefixIndex
from pontil.runtime.engine.sequences.prompt_keys import PromptKeys
from pontil.runtime.engine.sequences.sequence import Sequence


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
        known = self.index.blocks
        for key in keys.all:
            owner = self.owners.get(key)
            if key not in known and (owner is None or sequence.order < owner.order):
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
        self.release(key)
        for sequence in self.waiters.pop(key, ()):
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
        known = self.index.blocks
        return bisect_left(keys, True, key=lambda key: key not in known)

    def last_claimed(self, sequence: Sequence, keys: PromptKeys) -> Key | None:
        """Return the last key that the owner of the first missing block, an older sequence, computes for both; None if
        there is no such owner."""
        made = keys.all
        first = self.first_missing(made)
        owner = self.owners.get(made[first]) if first < len(made) else None
        if owner is None or owner.prefix.keys is None or not owner.order < sequence.order:
            return None
        for place in range(keys.common(owner.prefix.keys) - 1, first, -1):
            other = self.owners.get(made[place])
            if other is not None and other.order < sequence.order:
                return made[place]
        return made[first]

    def wake(self) -> list[Sequence]:
        """Return the sequences that need not wait any more."""
        woken, self.woken = self.woken, []
        return woken
