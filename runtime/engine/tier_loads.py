# SPDX-License-Identifier: Apache-2.0
"""Prefixes that are read back from a tier below the KV pool, while the sequences that need them wait and others go
on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from pontil.runtime.cache.prefix import Key
from pontil.runtime.cache.tier.tier_store import TierResult, TierStore
from pontil.runtime.engine.prefixes.cache import PrefixCache, PrefixHit
from pontil.runtime.engine.prefixes.kv_cache_manager import KVCacheManager
from pontil.runtime.engine.queues import SequenceQueues
from pontil.runtime.engine.sequences.sequence import Sequence, SequenceState

# Seconds that a sequence waits at least for a read: a turn of a thread may take longer than a few blocks.
LEAST_PATIENCE = 0.02


@dataclass(slots=True)
class TierLoad:
    """A read of `blocks` for a sequence of which `known` positions were found, expected to take `expected` seconds. It
    is one of the blocks' owners: they are written until it has ended, whatever becomes of the sequence. At the deadline
    the sequence has waited as long as computing would take, and is computed."""

    sequence: Sequence
    known: int
    keys: tuple[Key, ...]
    blocks: tuple[int, ...]
    expected: float
    deadline: float
    given_up: bool = False

    @property
    def is_awaited(self) -> bool:
        return not self.given_up and self.sequence.state is SequenceState.WAITING_FOR_REMOTE_KVS


class TierLoads:
    """The reads of one engine from its `store`, None where it has no tier.

    A sequence that waits is parked with all that admission reserved for it. When its read has ended, or takes too long,
    it starts as any other one does: from the longest prefix that the pool has by then. So a block that is missing or
    damaged is computed, and nothing else knows that it was to be read.

    `hits` counts prompt tokens that were read for sequences, `refused` prompts that were computed since reading seemed
    to take longer, and `late` reads that were given up.
    """

    def __init__(
        self,
        prefix: PrefixCache,
        memory: KVCacheManager,
        queues: SequenceQueues,
        start: Callable[[Sequence, PrefixHit], None],
        clock: Callable[[], float],
    ) -> None:
        self.prefix, self.memory, self.queues, self.start, self.clock = prefix, memory, queues, start, clock
        self.store: TierStore | None = None
        self.unsent: list[TierLoad] = []
        self.open: dict[int, TierLoad] = {}
        self.hits = self.refused = self.late = 0

    def use(self, store: TierStore) -> None:
        """Keep what the pool evicts in these tiers, and read it back."""
        self.store = store
        self.memory.pool.evicted = store.evicted
        self.memory.pool.index.below = store.chain

    @property
    def loads(self) -> Iterator[TierLoad]:
        yield from self.open.values()
        yield from self.unsent

    @property
    def has_work(self) -> bool:
        """Return whether a sequence waits for a read, or one is to be begun or has ended."""
        if self.store is None:
            return False
        return bool(self.unsent) or self.store.has_results or any(load.is_awaited for load in self.open.values())

    def begin(self, sequence: Sequence, hit: PrefixHit) -> bool:
        """Park a sequence that has its reservation, if tiers hold what follows the hit and reading it is worth the
        wait. Return whether they do."""
        wanted, tiers = self.missing(sequence, hit)
        tokens = [count for _, count in wanted]
        if self.store is None or not tiers:
            return False
        costs = self.store.costs
        waiting = sum(load.expected for load in self.loads)
        count = 0 if self.is_behind else costs.worth(zip(tiers, tokens, strict=False), waiting)
        if count == 0:
            costs.refused(tiers)
            self.refused += 1
            return False
        expected_seconds = waiting + costs.seconds(tiers[:count])
        patience = max(LEAST_PATIENCE, sum(tokens[:count]) * costs.per_token)
        keys = tuple(key for key, _ in wanted[:count])
        self.park(sequence, hit, keys, expected_seconds, self.clock() + patience)
        return True

    def missing(self, sequence: Sequence, hit: PrefixHit) -> tuple[list[tuple[Key, int]], list[str]]:
        """Return the keys of the blocks that the pool lacks of the prompt, with the tokens that each would save, and
        the tiers of the first of them. Where blocks end with states, an unfilled one is the last."""
        whole, hit_count, size = self.prefix.whole, len(hit.blocks), self.prefix.block_size
        if self.store is None or (hit.source is not None and not whole) or not self.prefix.may_use(sequence):
            return [], []
        most = self.prefix.most(sequence)
        tokens = [min(size, most - start) for start in range(hit_count * size, most, size)]
        keys = self.prefix.keys_of(sequence).all[hit_count : hit_count + len(tokens)]
        wanted, tiers = list(zip(keys, tokens, strict=True)), self.store.tiers_of(keys)
        if whole:
            ends = self.prefix.ends_behind(sequence, hit_count + len(tiers), self.store.chain)
            wanted = [*wanted[: len(tiers)], *islice(ends, 1)]
            tiers += self.store.tiers_of([key for key, _ in wanted[len(tiers) :]])
            if hit.source is not None and wanted:
                # The first one begins with what was found.
                key, count = wanted[0]
                wanted[0] = key, count - hit.computed % size
        return (wanted, tiers) if wanted and wanted[0][1] > 0 else ([], [])

    @property
    def is_behind(self) -> bool:
        """Return whether a read that was given up has not ended."""
        return any(load.given_up for load in self.open.values())

    def park(self, sequence: Sequence, hit: PrefixHit, keys: tuple[Key, ...], expected: float, deadline: float) -> None:
        hit_count, size = len(hit.blocks), self.prefix.block_size
        has_grown = self.memory.grow(sequence, (hit_count + len(keys)) * size)
        assert has_grown, "what is known of a sequence is reserved"
        blocks = sequence.blocks[hit_count:]
        self.memory.pool.share(blocks)
        sequence.move(SequenceState.WAITING_FOR_REMOTE_KVS)
        self.queues.park(sequence)
        self.unsent.append(TierLoad(sequence, hit.computed, keys, tuple(blocks), expected, deadline))
        # A copy that waits for the step may still have to read one of the blocks.
        if not self.memory.copies:
            self.send()

    def send(self) -> None:
        for load in self.unsent:
            assert self.store is not None
            self.open[self.store.read(list(zip(load.keys, load.blocks, strict=True)))] = load
        self.unsent.clear()

    def settle(self) -> None:
        """Start the sequences whose read has ended, and those that have waited long enough. Called in a step, before it
        admits others."""
        if self.store is None:
            return
        self.send()
        for result in self.store.poll():
            self.end(self.open.pop(result.ticket), result)
        now = self.clock()
        for load in list(self.open.values()):
            if load.is_awaited and now >= load.deadline:
                self.late += 1
                self.resume(load.sequence)
                load.given_up = True

    def end(self, load: TierLoad, result: TierResult) -> None:
        """Register what was read, for this sequence and for any other."""
        for key, block in zip(load.keys[: result.good], load.blocks, strict=False):
            self.prefix.add(key, block)
        self.memory.pool.release(load.blocks)
        if load.is_awaited:
            hit = self.resume(load.sequence)
            self.hits += max(0, hit.computed - load.known)

    def resume(self, sequence: Sequence) -> PrefixHit:
        """Start a parked sequence from what the pool has of its prompt. It needs no more blocks than it had."""
        hit = self.prefix.find(sequence)
        self.memory.give_back(sequence)
        self.queues.remove(sequence)
        if self.memory.reserve(sequence, hit, 0):
            self.start(sequence, hit)
        else:
            # The blocks of a read that was given up are not free yet.
            self.prefix.drop(sequence)
            sequence.move(SequenceState.WAITING)
            self.queues.wait(sequence)
        return hit

    def counters(self) -> dict[str, int]:
        """Return the counts under their names in heartbeats; none without a tier."""
        if self.store is None:
            return {}
        mine = {"kv_tier_hit_tokens": self.hits, "kv_tier_refused_loads": self.refused, "kv_tier_late_loads": self.late}
        return {**self.store.counters(), **mine}

    def gauges(self) -> dict[str, int]:
        """Return the blocks in each tier in use, and the fewest tokens that are read from it."""
        return {} if self.store is None else self.store.gauges()
