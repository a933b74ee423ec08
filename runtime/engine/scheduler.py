# SPDX-License-Identifier: Apache-2.0
"""Who computes how many tokens in the next step. Touches no tensor."""

from collections import deque

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.engine.batch import Batch, Span
from pontil.runtime.engine.sequence import Finish, Sequence, State


class Scheduler:
    """Running sequences first, in the order they came; then whoever waits and fits.

    Admission reserves the blocks of a sequence's whole life (prompt + max_tokens), so that running sequences can never
    starve each other of memory. `parked` sequences wait for KV from another worker: they hold their reservation and a
    seat, but take no part in a step.
    """

    def __init__(self, pool: BlockPool, layout: KVLayout, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.pool, self.layout = pool, layout
        self.max_num_seqs, self.max_num_batched_tokens = max_num_seqs, max_num_batched_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.parked: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def fits(self, sequence: Sequence) -> bool:
        """Whether the sequence could run in an empty pool."""
        return self.layout.blocks_for(sequence.max_length) <= self.pool.capacity

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def schedule(self) -> Batch:
        """Give out at most `max_num_batched_tokens` positions. A decode row costs one and is never refused."""
        self.admit()
        budget = self.max_num_batched_tokens
        decoding = [sequence for sequence in self.running if sequence.remaining == 1]
        catching_up = [sequence for sequence in self.running if sequence.remaining > 1]
        spans = [Span(sequence, sequence.computed, 1) for sequence in decoding]
        for sequence in catching_up:
            count = min(sequence.remaining, budget)
            if count == 0:
                break
            spans.append(Span(sequence, sequence.computed, count))
            budget -= count
        for span in spans:
            self.grow(span.sequence, span.start + span.count)
        return Batch(tuple(spans))

    def admit(self) -> None:
        while self.waiting and self.reserve(self.waiting[0]):
            sequence = self.waiting.popleft()
            sequence.move(State.RUNNING)
            self.running.append(sequence)

    def reserve(self, sequence: Sequence) -> bool:
        """Take a seat and the blocks of the whole life of a sequence, or nothing."""
        if len(self.running) + len(self.parked) >= self.max_num_seqs:
            return False
        count = self.layout.blocks_for(sequence.max_length)
        if not self.pool.reserve(count):
            return False
        sequence.credits = count
        return True

    def park(self, sequence: Sequence) -> bool:
        """Admit a sequence whose prompt is being computed elsewhere, or say False."""
        if not self.reserve(sequence):
            return False
        sequence.move(State.WAITING_FOR_REMOTE_KVS)
        self.parked.append(sequence)
        return True

    def promote(self, sequence: Sequence, computed: int, first_token: int) -> None:
        """Its KV has arrived: it runs on from here as if it had been computed in this engine."""
        self.parked.remove(sequence)
        sequence.receive(first_token)
        sequence.computed = computed
        sequence.move(State.RUNNING)
        self.running.append(sequence)

    def compute_here(self, sequence: Sequence, first_token: int) -> None:
        """Its KV will not arrive, but its first token is known: it waits to be computed in this engine (C12)."""
        self.parked.remove(sequence)
        self.give_back(sequence)
        sequence.receive(first_token)
        sequence.move(State.WAITING)
        self.waiting.append(sequence)

    def give_back(self, sequence: Sequence) -> None:
        """Return all blocks and credits of a sequence to the pool."""
        self.pool.release(sequence.blocks, sequence.credits)
        sequence.blocks, sequence.credits = [], 0

    def grow(self, sequence: Sequence, positions: int) -> None:
        """Bind credits until the blocks hold so many positions."""
        count = self.layout.blocks_for(positions) - len(sequence.blocks)
        if count > 0:
            sequence.blocks += self.pool.bind(count)
            sequence.credits -= count

    def finish(self, sequence: Sequence, finish: Finish) -> None:
        """End a sequence in whatever state it is. Its blocks go back unless it hands them over."""
        if sequence.state is State.RUNNING:
            self.running.remove(sequence)
        elif sequence.state is State.WAITING_FOR_REMOTE_KVS:
            self.parked.remove(sequence)
        elif sequence.state is State.WAITING:
            self.waiting.remove(sequence)
        sequence.end(finish)
        if finish is not Finish.HANDED_OVER:
            self.give_back(sequence)
