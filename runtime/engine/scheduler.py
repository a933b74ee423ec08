# SPDX-License-Identifier: Apache-2.0
"""The scheduler: which sequences compute how many tokens in the next step. Touches no tensor."""

import time
from collections.abc import Callable, Iterator

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.engine.answer_recompute import AnswerRecompute
from pontil.runtime.engine.background_room import BackgroundRoom
from pontil.runtime.engine.drafts.step_drafts import StepDrafts
from pontil.runtime.engine.prefixes.block_shortage import BlockShortage
from pontil.runtime.engine.prefixes.cache import PrefixCache, PrefixHit
from pontil.runtime.engine.prefixes.kv_cache_manager import KVCacheManager
from pontil.runtime.engine.prompt_turns import PromptTurns, StepBudget
from pontil.runtime.engine.queues import SequenceQueues
from pontil.runtime.engine.sequences.batch import Batch, Span
from pontil.runtime.engine.sequences.output_record import Known
from pontil.runtime.engine.sequences.remote_prefill import RemotePrefill
from pontil.runtime.engine.sequences.sequence import FinishReason, Sequence, SequenceState
from pontil.runtime.engine.tier_loads import TierLoads
from pontil.runtime.foundation.fair_share import GUARANTEED, ServiceClass

# Steps in a row in which what gives way has nothing, so that it has its part of them.
MOST_RESTS = round(1 / GUARANTEED[ServiceClass.BATCH]) - 1


class Scheduler:
    """The scheduler of one engine. Running sequences go first, oldest first; then waiting ones that fit. All lists are
    in the order of priority, then of arrival; below, older means earlier in this order. Prompts take turns in what a
    step computes of them (runtime/engine/prompt_turns.py).

    There is one queue, `waiting`, for sequences to be computed here and for those whose KV will come from another
    worker (`remote_prefill`): neither kind passes the other (docs/decisions/027).

    A sequence has one seat, also before it forks: choices that find none are paused, and keep their blocks. A free seat
    goes to the caller that holds the fewest for its weight; a caller that holds more than its part while another one
    waits has its newest sequence paused (docs/decisions/068).

    Admission reserves blocks for the known tokens of a sequence; generated tokens take blocks as they come. When no
    block is left, a sequence is preempted: it loses its blocks and waits to be computed again. First come paused ones,
    then the last running one, so that the first always continues. A sequence that hands over is reserved whole and
    never preempted: its blocks are promised to a decode worker. `parked` sequences wait for KV from another worker, or
    from a `tier` below the pool: they hold their reservation and their seat, but take no part in a step.
    """

    def __init__(
        self,
        pool: BlockPool,
        layout: KVLayout,
        max_num_seqs: int,
        budget: StepBudget,
        prefix_caching: bool = True,
        clock: Callable[[], float] = lambda: time.monotonic(),
        drafts: StepDrafts | None = None,
    ) -> None:
        self.budget, self.clock, self.drafts = budget, clock, drafts or StepDrafts()
        self.prefix = PrefixCache(pool, layout.block_size, prefix_caching, clock, layout.has_states)
        self.memory = KVCacheManager(pool, layout)
        self.answer_recompute = AnswerRecompute(self.prefix, self.memory, layout.block_size)
        self.queues, self.turns = SequenceQueues(max_num_seqs, self.prefix), PromptTurns()
        self.shortage: BlockShortage | None = None
        self.waiting, self.running, self.parked = self.queues.waiting, self.queues.running, self.queues.parked
        self.tier = TierLoads(self.prefix, self.memory, self.queues, self.start, clock)
        self.background = BackgroundRoom(clock)
        # The steps in a row, with the one that is being built, in which what gives way has had nothing. Then its
        # prompts go first in one.
        self.rested, self.their_turn = 0, False
        self.preemptions = self.recomputed = 0
        self.stalled = self.held_up = False

    @property
    def has_work(self) -> bool:
        """Return whether there is work for a step; sequences that wait to be parked, or for another stage, need
        none."""
        for sequence in self.running:
            if not sequence.rests:
                return True
        for sequence in self.queues.paused:
            if not sequence.rests:
                return True
        for sequence in self.waiting:
            if sequence.remote_prefill is None:
                return True
        return self.tier.has_work or len(self.prefix.unkeyed) > 0

    def fits(self, sequence: Sequence) -> bool:
        """Return whether the sequence could run in an empty pool."""
        enough = self.memory.layout.blocks_for(sequence.max_length) <= self.memory.pool.capacity
        return enough and len(sequence.choices) <= self.queues.max_num_seqs

    def add(self, sequence: Sequence, known: list[Known] | None = None) -> list[Sequence]:
        """Queue a sequence to be computed from its first token on; if its choices are continued, each as a sequence of
        its own."""
        self.queues.arrive(sequence)
        self.queues.wait(sequence)
        return [sequence] if known is None else self.receive(sequence, known)

    def schedule(self) -> Batch:
        """Build a batch within the budget of prompt positions. A decode row is never refused for its cost. Afterwards
        `held_up` tells whether a sequence would have been preempted, had its last step been over."""
        self.held_up = False
        self.admit()
        self.their_turn = self.rested == MOST_RESTS
        self.rested = self.rested + 1 if self.yielding_rest else 0
        spans = self.decode_spans()
        if self.drafts.most:
            spans = self.drafts.add(spans, self.memory)
        if len(spans) < len(self.running):
            spans += self.chunks(self.budget.of_step(decodes=bool(spans)), spans)
        else:
            # No prompt is left that has had a turn.
            self.turns.levels.clear()
        self.stalled = not spans and self.has_work
        return Batch(tuple(spans), self.memory.take_copies())

    @property
    def has_spare_work(self) -> bool:
        """Return whether there is idle work, which no request waits for, and no other work."""
        return self.answer_recompute.has_work and self.queues.is_empty

    @property
    def open_prompts(self) -> list[Sequence]:
        return [sequence for sequence in self.running if not sequence.decodes and sequence.is_ready]

    @property
    def yielding_rest(self) -> bool:
        """True while a prompt of a class before the last is computed: a step with nothing of what gives way is over
        sooner, and so is the wait for a first token. Not in more steps in a row than leave the last class its part."""
        return (
            self.queues.seats.lent > 0
            and not self.their_turn
            and any(not prompt.standing.share.gives_way for prompt in self.open_prompts)
        )

    def decode_spans(self) -> list[Span]:
        """Return one position for each sequence that decodes, in turn, so that no sequence with a span is preempted
        afterwards. A sequence that finds no block and none behind it to preempt waits for blocks that are
        promised or handed over."""
        spans = list[Span]()
        in_turn, are_lent = self.queues.running_in_turn(), self.queues.seats.lent > 0
        others, room = 0, 0 if self.rested else None
        for sequence in in_turn:
            gives_way = are_lent and sequence.standing.share.gives_way
            if gives_way and room is None:
                room = self.background_room(others)
            if gives_way and not room:
                continue
            ready = sequence.state is SequenceState.RUNNING and sequence.decodes and sequence.is_ready
            if ready and (self.memory.own_next(sequence) or self.make_room(sequence, in_turn)):
                others, room = (others, room - 1) if gives_way and room is not None else (others + 1, room)
                spans.append(Span(sequence, sequence.computed, 1))
        return spans

    def background_room(self, others: int) -> int:
        """Return how many rows what gives way may have in a step beside so many of others."""
        rows = self.background.rows(others, self.queues.seats.taken > 0)
        return self.budget.whole + self.queues.max_num_seqs if rows is None else rows

    def chunks(self, budget: int, spans: list[Span]) -> Iterator[Span]:
        """Yield chunks of prompts, which take turns, beside these spans. A step draws at most one first token for each
        seat."""
        open_prompts = self.open_prompts
        if self.rested:
            open_prompts = [prompt for prompt in open_prompts if not prompt.standing.share.gives_way]
        elif self.their_turn:
            open_prompts.sort(key=lambda prompt: not prompt.standing.share.gives_way)
        elif self.queues.seats.lent:
            # Only what gives way has prompts now.
            own = sum(span.sequence.standing.share.gives_way for span in spans)
            budget = min(budget, max(0, self.background_room(len(spans) - own) - own))
        counts, first_tokens = self.turns.divide(open_prompts, budget), self.queues.max_num_seqs
        for sequence in open_prompts:
            count = counts.get(sequence, 0)
            draws = len(sequence.choices) if count == sequence.remaining else 0
            if count and draws <= first_tokens and self.make_chunk_room(sequence, count):
                yield Span(sequence, sequence.computed, count)
                first_tokens -= draws

    def make_chunk_room(self, sequence: Sequence, count: int) -> bool:
        """Make room for a chunk. Admission reserved the known tokens of a sequence, except those delivered before its
        KV came from another worker: if there is no room for these, the sequence waits to be admitted with all that it
        needs."""
        while not (self.memory.own_next(sequence) and self.memory.grow(sequence, sequence.computed + count)):
            if not self.preempt(self.queues.newest_paused(sequence)):
                break
        else:
            return True
        assert sequence.record.received and not sequence.hands_over, "what is known of a running sequence is reserved"
        self.preempt(sequence)
        return False

    def advance(self, batch: Batch) -> None:
        """Mark the batch as computed."""
        for span in batch.spans:
            self.recomputed += span.sequence.advance(span.start + span.count)
            if span.start < len(span.sequence.prompt):
                self.prefix.register(span.sequence, span.start, span.sequence.computed)

    def admit(self, in_step: bool = True) -> None:
        """Give seats in turn, until one finds no seat or no room. One whose prefix an older one is computing, or whose
        peer is not ready, lets others pass.

        Between steps only those that wait for remote KV are parked: a sequence admitted to be computed may have a block
        to copy, which must not be reassigned before the step that copies it.
        """
        if in_step:
            self.tier.settle()
        for sequence in self.prefix.released(in_step=bool(self.running)):
            self.queues.line_up(sequence)
        for sequence in self.queues.next_in_turn() if self.queues.lines else ():
            if not self.queues.may_seat(sequence):
                return
            if sequence.state is SequenceState.PAUSED:
                self.queues.resume(sequence)
                continue
            remote = sequence.remote_prefill
            if self.queues.holds_back(sequence) if remote is None else not remote.is_ready:
                continue
            if not (self.take_seat(sequence, remote) if remote else in_step and self.take_up(sequence)):
                return

    def take_up(self, sequence: Sequence) -> bool:
        """Start a sequence if there is room for it, or park it while its prefix is read from a tier."""
        hit = self.reserve(sequence, lambda: self.prefix.find(sequence))
        if hit is None:
            return False
        self.queues.free_seat(sequence)
        self.queues.remove(sequence)
        if not self.tier.begin(sequence, hit):
            self.start(sequence, hit)
        self.prefix.claim(sequence)
        return True

    def take_seat(self, sequence: Sequence, remote: RemotePrefill) -> bool:
        """Park a sequence if there is room for it. Leading blocks that are cached here become its own; `computed` says
        how many tokens they hold."""
        hit = self.reserve(sequence, lambda: self.prefix.find_full(sequence, remote.draws_first))
        if hit is None:
            return False
        self.queues.free_seat(sequence)
        self.queues.remove(sequence)
        sequence.computed, sequence.remote_prefill = hit.computed, None
        sequence.move(SequenceState.WAITING_FOR_REMOTE_KVS)
        self.queues.park(sequence)
        remote.begin()
        return True

    def reserve(self, sequence: Sequence, find: Callable[[], PrefixHit]) -> PrefixHit | None:
        """Reserve the blocks of a sequence after what is found of its prefix, or nothing. One block stays available for
        each running sequence, or the new one would be preempted at once. Paused sequences lose theirs for it, and those
        that are above their part."""
        somebody_gives = True
        while somebody_gives:
            spare = sum(not running_sequence.hands_over for running_sequence in self.running)
            if self.shortage is None or not self.shortage.lasts(sequence, self.memory.pool, spare):
                hit = find()
                if self.memory.reserve(sequence, hit, spare):
                    self.shortage = None
                    return hit
                missing = self.prefix.missing(sequence, hit)
                lacking = self.memory.lacking(sequence, hit, spare)
                self.shortage = BlockShortage(sequence, lacking, self.memory.pool.returned, spare, missing)
            somebody_gives = self.preempt(self.queues.newest_paused(sequence) or self.queues.newest_above(sequence))
        return None

    def start(self, sequence: Sequence, hit: PrefixHit) -> None:
        """Run a sequence from the end of its cached prefix."""
        self.memory.adopt(sequence, hit)
        if sequence.history.admit(hit.computed, len(sequence.prompt), self.clock()):
            self.prefix.count(sequence, hit.computed)
        sequence.computed = hit.computed
        sequence.move(SequenceState.RUNNING)
        self.queues.run(sequence)

    def make_room(self, sequence: Sequence, in_turn: list[Sequence]) -> bool:
        """Bind a block for the next position, for which there was none, by preempting paused sequences and those behind
        it."""
        while self.preempt(self.queues.newest_paused(sequence) or last_behind(sequence, in_turn)):
            if self.memory.own_next(sequence):
                return True
        return False

    def preempt(self, sequence: Sequence | None) -> bool:
        """Take all blocks from a running or paused sequence, if there is one that gives them now and not only when the
        last step is over. It is computed again, by replay, when there is room."""
        if sequence is None or self.memory.is_written(sequence):
            self.held_up = self.held_up or sequence is not None
            return False
        self.preemptions += 1
        if sequence.history.times is not None:
            sequence.history.times.preempt(self.clock())
        self.queues.remove(sequence)
        self.prefix.drop(sequence)
        self.memory.give_back(sequence)
        sequence.computed = 0
        sequence.move(SequenceState.PREEMPTED)
        sequence.move(SequenceState.WAITING)
        self.queues.wait(sequence)
        return True

    def park(self, sequence: Sequence, remote: RemotePrefill) -> bool:
        """Queue a sequence whose prompt is computed elsewhere, to wait for seats and blocks. Return whether it has them
        at once."""
        self.queues.arrive(sequence)
        sequence.remote_prefill = remote
        self.queues.wait(sequence)
        self.admit(in_step=False)
        return sequence.state is SequenceState.WAITING_FOR_REMOTE_KVS

    def promote(self, sequence: Sequence, computed: int, known: list[Known] | None) -> list[Sequence]:
        """Run a sequence whose KV has arrived, with all its choices, as if it had been computed in this engine. Where
        no first tokens are known, its last position is computed here, as after any cached prefix: where blocks end with
        states, which are behind it already, with the others of its block."""
        self.queues.remove(sequence)
        usable_tokens = computed if known is not None else min(computed, self.prefix.most(sequence))
        self.prefix.register(sequence, sequence.computed, usable_tokens)
        sequence.computed, sequence.history.reached = usable_tokens, computed
        sequence.move(SequenceState.RUNNING)
        self.queues.run(sequence)
        return [sequence] if known is None else self.receive(sequence, known)

    def receive(self, sequence: Sequence, known: list[Known]) -> list[Sequence]:
        """Return one sequence for each choice whose first tokens were sampled elsewhere."""
        sequence.branch.choice = known[0].choice
        sequences = [sequence, *(self.fork(sequence, tokens.choice) for tokens in known[1:])]
        sequence.branch.forked = True
        for receiver, tokens in zip(sequences, known, strict=True):
            receiver.receive(tokens)
        return sequences

    def take_back(self, sequence: Sequence, reached: int = 0, arrived: int = 0) -> None:
        """Remove a sequence that was parked, or is to be, without ending it: it may be added, to be computed here. That
        was computed elsewhere up to position `reached`. What has `arrived` of its KV is left in the prefix cache; its
        blocks and its seat are free."""
        self.queues.remove(sequence)
        self.prefix.drop(sequence)
        sequence.remote_prefill, sequence.history.reached = None, reached
        if sequence.state is SequenceState.WAITING_FOR_REMOTE_KVS:
            self.prefix.register(sequence, sequence.computed, arrived)
            self.memory.give_back(sequence)
            sequence.computed = 0
            sequence.move(SequenceState.WAITING)

    def fork(self, stem: Sequence, choice: int) -> Sequence:
        """Return a sequence for one more choice, which shares every block of the stem."""
        sequence = stem.fork(choice)
        self.memory.pool.share(sequence.blocks)
        if sequence.state is SequenceState.RUNNING and self.queues.is_full:
            sequence.move(SequenceState.PAUSED)
        place = {SequenceState.RUNNING: self.queues.run, SequenceState.PAUSED: self.queues.pause}
        place.get(sequence.state, self.queues.wait)(sequence)
        return sequence

    def finish(self, sequence: Sequence, finish: FinishReason) -> None:
        """End a sequence in any state. Its blocks are released, except those of one that hands over and was computed or
        has failed: a peer may be reading them, and the prefill side releases them."""
        self.queues.remove(sequence)
        self.prefix.drop(sequence)
        self.drafts.drafter.forget(sequence)
        sequence.end(finish)
        is_complete = finish in (FinishReason.STOP, FinishReason.LENGTH)
        if is_complete and self.prefix.enabled and not sequence.streams.exchange_rows:
            self.answer_recompute.keep(sequence)
        if not sequence.hands_over or finish is FinishReason.ABORTED:
            self.memory.give_back(sequence)


def last_behind(sequence: Sequence, in_turn: list[Sequence]) -> Sequence | None:
    """Return the last running sequence behind this one whose blocks are not promised to a peer."""
    for candidate in reversed(in_turn):
        if candidate is sequence:
            return None
        if candidate.state is SequenceState.RUNNING and not candidate.hands_over:
            return candidate
    return None
