# SPDX-License-Identifier: Apache-2.0
"""Who computes how many tokens in the next step. Touches no tensor."""

from bisect import insort
from collections.abc import Iterator
from operator import attrgetter

from pontil.gpu_ops.attention import QUERY_TILE
from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.engine.answer_keeper import AnswerKeeper
from pontil.runtime.engine.batch import Batch, Span
from pontil.runtime.engine.memory import Memory
from pontil.runtime.engine.prefix_cache import Hit, PrefixCache
from pontil.runtime.engine.sequence import Finish, First, Sequence, State

by_order = attrgetter("order")


class Scheduler:
    """Running sequences first, oldest first; then whoever waits and fits. All lists are in the order of arrival.

    Admission reserves blocks for what is known of a sequence; generated tokens take blocks as they come. When there is
    none left, the newest running sequence is preempted: it loses its blocks and waits to be computed again, so that the
    oldest always goes on. A sequence that hands over is reserved whole and never preempted: its blocks are promised to
    somebody else. `parked` sequences wait for KV from another worker: they hold their reservation and their seats, but
    take no part in a step.
    """

    def __init__(
        self,
        pool: BlockPool,
        layout: KVLayout,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        prefix_caching: bool = True,
        max_interleaved_tokens: int | None = None,
    ) -> None:
        self.max_interleaved_tokens = min(max_interleaved_tokens or max_num_batched_tokens, max_num_batched_tokens)
        self.max_num_seqs, self.max_num_batched_tokens = max_num_seqs, max_num_batched_tokens
        self.prefix = PrefixCache(pool, layout.block_size, prefix_caching)
        self.keeper = AnswerKeeper(layout.block_size, self.admit_again, self.end_again)
        self.memory = Memory(pool, layout, self.keeper.give_way)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.parked: list[Sequence] = []
        self.arrivals = self.preemptions = 0
        self.stalled = False

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    @property
    def seats_taken(self) -> int:
        """A sequence that will fork holds a seat for each of its choices."""
        return sum(len(sequence.choices) for some in (self.running, self.parked) for sequence in some)

    def fits(self, sequence: Sequence) -> bool:
        """Whether the sequence could run in an empty pool."""
        enough = self.memory.layout.blocks_for(sequence.max_length) <= self.memory.pool.capacity
        return enough and len(sequence.choices) <= self.max_num_seqs

    def add(self, sequence: Sequence) -> None:
        self.arrive(sequence)
        self.waiting.append(sequence)

    def arrive(self, sequence: Sequence) -> None:
        """Its place in the order, which it keeps."""
        if sequence.arrival == 0:
            self.arrivals += 1
            sequence.arrival = self.arrivals

    def schedule(self) -> Batch:
        """Give out at most `max_num_batched_tokens` prompt positions, or at most `max_interleaved_tokens` where others
        decode and wait for the step to end. A decode row is never refused for its cost."""
        self.admit()
        spans = list(self.decode_spans())
        spans += self.chunks(self.max_interleaved_tokens if spans else self.max_num_batched_tokens)
        self.stalled = not spans and self.has_work
        return Batch(tuple(spans), self.memory.take_copies())

    @property
    def has_spare_work(self) -> bool:
        """Whether there is something to do that nobody waits for, and nothing else."""
        return self.keeper.has_work and not (self.running or self.waiting or self.parked)

    def spare_batch(self) -> Batch | None:
        """A few positions of a finished answer, to be computed again as a prompt."""
        span = self.keeper.next_span() if self.has_spare_work else None
        if span is None:
            return None
        promised = self.memory.grow(span.sequence, span.start + span.count)
        assert promised, "what is known of a sequence is reserved"
        return Batch((span,), self.memory.take_copies())

    def admit_again(self, sequence: Sequence) -> bool:
        """A finished answer is computed as a prompt, if that takes nothing from anybody."""
        hit = self.prefix.find(sequence)
        if hit.computed >= sequence.length - 1 or not self.reserve(sequence, hit):
            return False
        self.start(sequence, hit)
        self.running.remove(sequence)
        return True

    def end_again(self, sequence: Sequence, finish: Finish) -> None:
        self.prefix.drop(sequence)
        sequence.end(finish)
        self.memory.give_back(sequence)

    def decode_spans(self) -> Iterator[Span]:
        """One position for each sequence that lacks only one, oldest first, so that nobody is preempted who was given
        a span already. Who finds no block and nobody newer waits for blocks that are promised or handed over."""
        for sequence in list(self.running):
            if sequence.state is State.RUNNING and sequence.remaining == 1 and self.make_room(sequence):
                yield Span(sequence, sequence.computed, 1)

    def chunks(self, budget: int) -> Iterator[Span]:
        for sequence in self.running:
            count = chunk(sequence.computed, sequence.remaining, budget)
            if sequence.remaining > 1 and count:
                promised = self.memory.grow(sequence, sequence.computed + count)
                assert promised, "what is known of a running sequence is reserved"
                yield Span(sequence, sequence.computed, count)
                budget -= count

    def advance(self, batch: Batch) -> None:
        """The batch was computed."""
        for span in batch.spans:
            span.sequence.computed = span.start + span.count
            self.prefix.register(span.sequence, span.start, span.sequence.computed)
        self.keeper.advanced()

    def admit(self) -> None:
        """Whoever waits, in order, until one does not fit. Those whose prefix is being computed let others pass."""
        for sequence in list(self.waiting):
            if self.seats_taken >= self.max_num_seqs:
                return
            if self.prefix.awaits(sequence):
                continue
            hit = self.prefix.find(sequence)
            if not self.reserve(sequence, hit):
                return
            self.waiting.remove(sequence)
            self.start(sequence, hit)

    def reserve(self, sequence: Sequence, hit: Hit) -> bool:
        """Take seats and blocks, or nothing. One block for each running sequence stays, or the newcomer would be
        preempted at once."""
        if self.seats_taken + len(sequence.choices) > self.max_num_seqs:
            return False
        return self.memory.reserve(sequence, hit, sum(not other.hands_over for other in self.running))

    def start(self, sequence: Sequence, hit: Hit) -> None:
        """It runs from where its prefix is known."""
        self.memory.adopt(sequence, hit)
        if sequence.admissions == 0:
            sequence.cached = hit.computed
            self.prefix.count(sequence, hit.computed)
        sequence.admissions += 1
        sequence.computed = hit.computed
        self.prefix.claim(sequence)
        self.run(sequence)

    def run(self, sequence: Sequence) -> None:
        sequence.move(State.RUNNING)
        insort(self.running, sequence, key=by_order)

    def make_room(self, sequence: Sequence) -> bool:
        """See to it that the next position can be written, at the cost of newer sequences if it must be."""
        while not self.memory.own_next(sequence):
            victim = next((one for one in reversed(self.running) if not one.hands_over), None)
            if victim is None or victim.order <= sequence.order:
                return False
            self.preempt(victim)
        return True

    def preempt(self, sequence: Sequence) -> None:
        """Take everything from a running sequence. It is computed again, by replay, when there is room."""
        self.preemptions += 1
        self.running.remove(sequence)
        self.prefix.drop(sequence)
        self.memory.give_back(sequence)
        sequence.computed = 0
        sequence.move(State.PREEMPTED)
        sequence.move(State.WAITING)
        insort(self.waiting, sequence, key=by_order)

    def park(self, sequence: Sequence) -> bool:
        """Admit a sequence whose prompt is being computed elsewhere, or say False: nobody passes those who wait to be
        admitted again. Leading blocks that are known here are its own from now on; `computed` says how much they hold.
        """
        if any(other.admissions for other in self.waiting):
            return False
        self.arrive(sequence)
        hit = self.prefix.find_full(sequence)
        if not self.reserve(sequence, hit):
            return False
        sequence.computed = hit.computed
        sequence.move(State.WAITING_FOR_REMOTE_KVS)
        self.parked.append(sequence)
        return True

    def promote(self, sequence: Sequence, computed: int, firsts: list[First]) -> list[Sequence]:
        """Its KV has arrived: it runs on from here, with all its choices, as if it had been computed in this engine."""
        self.parked.remove(sequence)
        self.prefix.register(sequence, sequence.computed, computed)
        sequence.computed = computed
        self.run(sequence)
        return self.receive(sequence, firsts)

    def receive(self, sequence: Sequence, firsts: list[First]) -> list[Sequence]:
        """One sequence for each first token that was drawn elsewhere."""
        sequence.choice = firsts[0].choice
        made = [sequence, *(self.fork(sequence, first.choice) for first in firsts[1:])]
        sequence.forked = True
        for one, first in zip(made, firsts, strict=True):
            one.receive(first)
        return made

    def compute_here(self, sequence: Sequence, firsts: list[First]) -> list[Sequence]:
        """Its KV will not arrive, but its first tokens are known: all its choices wait to be computed in this engine,
        where the first one leaves the prompt's blocks for the others to find (C12)."""
        self.parked.remove(sequence)
        self.memory.give_back(sequence)
        sequence.computed = 0
        sequence.move(State.WAITING)
        made = self.receive(sequence, firsts)
        insort(self.waiting, sequence, key=by_order)
        return made

    def fork(self, stem: Sequence, choice: int) -> Sequence:
        """One more choice, which shares every block of the stem."""
        sequence = stem.fork(choice)
        self.memory.pool.share(sequence.blocks)
        insort(self.running if sequence.state is State.RUNNING else self.waiting, sequence, key=by_order)
        return sequence

    def finish(self, sequence: Sequence, finish: Finish) -> None:
        """End a sequence in whatever state it is. Its blocks go back, but for those of a sequence that hands over and
        is complete: a peer may be reading them, and whoever deals with peers gives them back."""
        places = {State.RUNNING: self.running, State.WAITING_FOR_REMOTE_KVS: self.parked, State.WAITING: self.waiting}
        places[sequence.state].remove(sequence)
        self.prefix.drop(sequence)
        sequence.end(finish)
        if finish in (Finish.STOP, Finish.LENGTH) and self.prefix.enabled:
            self.keeper.keep(sequence)
        if not sequence.hands_over or finish in (Finish.ABORTED, Finish.ERROR):
            self.memory.give_back(sequence)


def chunk(start: int, remaining: int, budget: int) -> int:
    """How many of the remaining positions to compute now. A chunk that is not the last ends where a tile of queries
    does, if it reaches one: attention computes whole tiles."""
    if remaining <= budget:
        return remaining
    beyond = (start + budget) % QUERY_TILE
    return budget - beyond if beyond < budget else budget
