# SPDX-License-Identifier: Apache-2.0
"""The KV blocks of one engine's sequences: reserved, found, bound as sequences grow, shared and copied."""

from collections import abc
from collections.abc import Callable

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.engine.prefixes.cache import PrefixHit
from pontil.runtime.engine.sequences.sequence import Sequence

Copy = tuple[int, int]


class KVCacheManager:
    """The owner of the blocks of sequences. A sequence writes only into blocks that it owns alone; a shared block is
    copied first, and so is the end of a prompt with states that others may go on from. The copies (from, to) of a step
    are carried out before anything else in it, and all are read before any is written, so that a block that was
    reassigned meanwhile is still read with its old content.

    Blocks that a step in flight may still write are not given back before it is over: `launched` and `landed` tell
    which steps are.

    `give_way`, set by the component that keeps blocks for no request, frees such blocks and returns whether there were
    any.
    """

    def __init__(self, pool: BlockPool, layout: KVLayout) -> None:
        self.pool, self.layout, self.has_states = pool, layout, layout.has_states
        self.give_way: Callable[[], bool] = lambda: False
        self.copies: list[Copy] = []
        # Blocks reserved for each sequence and not bound yet.
        self.credits: dict[Sequence, int] = {}
        self.written: frozenset[Sequence] = frozenset()
        # Blocks of sequences that ended, in the last step in flight and in the one before.
        self.later: list[int] = []
        self.due: list[int] = []

    def launched(self, sequences: abc.Iterable[Sequence]) -> None:
        """Note the sequences of a step whose end is not waited for."""
        self.written = frozenset(sequences)
        self.due, self.later = self.due + self.later, []

    def landed(self) -> None:
        """Give back what the steps before the last one launched kept: they are over."""
        if self.due:
            self.pool.release(self.due)
            self.due = []

    def is_written(self, sequence: Sequence) -> bool:
        """Return whether a step in flight may still write its blocks."""
        return sequence in self.written

    def reserve(self, sequence: Sequence, hit: PrefixHit, spare: int) -> bool:
        """Reserve the blocks of the hit, and credits for the remaining known tokens and one more; or nothing. `spare`
        blocks stay available. Return whether they were reserved."""
        count = self.wanted(sequence, hit)
        if not self.find_room(count, hit.blocks, spare):
            return False
        sequence.blocks, self.credits[sequence] = list(hit.blocks), count
        return True

    def wanted(self, sequence: Sequence, hit: PrefixHit) -> int:
        """Return how many blocks are reserved for a sequence beyond those of the hit."""
        return self.layout.blocks_for(min(sequence.length + 1, sequence.max_length)) - len(hit.blocks)

    def lacking(self, sequence: Sequence, hit: PrefixHit, spare: int) -> int:
        """Return how many more blocks would have to be available for a reservation."""
        return self.pool.taken_by(self.wanted(sequence, hit), hit.blocks) + spare - self.pool.available

    def adopt(self, sequence: Sequence, hit: PrefixHit) -> None:
        """Start a sequence after its cached prefix: a block of which only the beginning is used has to be copied."""
        if hit.source is not None:
            # The end of a turn is of little use once the next one has gone on from it.
            (self.pool.retire if self.has_states else self.pool.touch)(hit.source)
            self.grow(sequence, hit.computed)
            self.copies.append((hit.source, sequence.blocks[-1]))

    def grow(self, sequence: Sequence, positions: int) -> bool:
        """Bind credits, then available blocks, until the blocks hold so many positions; or change nothing."""
        count = max(0, self.layout.blocks_for(positions) - len(sequence.blocks))
        credits = self.credits.get(sequence, 0)
        credited_count = min(count, credits)
        if not self.find_room(count - credited_count):
            return False
        sequence.blocks += self.pool.bind(count)
        if credited_count:
            self.credits[sequence] = credits - credited_count
        return True

    def own_next(self, sequence: Sequence) -> bool:
        """Make the block of the next position this sequence's alone: bind or copy it now if need be. Return whether
        that succeeded."""
        index = sequence.computed // self.layout.block_size
        if index == len(sequence.blocks):
            return self.grow(sequence, sequence.computed + 1)
        block = sequence.blocks[index]
        if not self.pool.is_shared(block) and not self.stays(block):
            return True
        if not self.find_room(1):
            return False
        (sequence.blocks[index],) = self.pool.bind(1)
        self.copies.append((block, sequence.blocks[index]))
        self.pool.release([block])
        return True

    def stays(self, block: int) -> bool:
        """Return whether a block is to stay as it is for others to find it at the position of its states. That takes
        memory that nobody uses: if there is none, the block is forgotten."""
        if not self.has_states or not self.pool.index.knows(block):
            return False
        if self.pool.has_unused:
            return True
        self.pool.index.forget(block)
        return False

    def find_room(self, count: int, hit_blocks: abc.Sequence[int] = (), spare: int = 0) -> bool:
        is_reserved = self.pool.reserve(count, hit_blocks, spare)
        return is_reserved or (self.give_way() and self.pool.reserve(count, hit_blocks, spare))

    def give_back(self, sequence: Sequence) -> None:
        """Return all blocks and credits of a sequence. Copies into them are cancelled."""
        if self.copies:
            lost = set(sequence.blocks)
            self.copies = [(source, target) for source, target in self.copies if target not in lost]
        credits = self.credits.pop(sequence, 0)
        if sequence in self.written:
            self.later += sequence.blocks
            self.pool.release([], credits)
        else:
            self.pool.release(sequence.blocks, credits)
        sequence.blocks = []

    def take_copies(self) -> tuple[Copy, ...]:
        copies, self.copies = tuple(self.copies), []
        return copies
