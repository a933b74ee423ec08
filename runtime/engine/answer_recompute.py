# SPDX-License-Identifier: Apache-2.0
"""Recomputation of finished answers as prompts, so that the next turn of a conversation finds them in the prefix cache
(rule B3). Needed only where a row has the same bits in any company, and others in a prompt than in an answer: for
torch's operations on a CPU, and on devices with `--deterministic`. With our own kernels the answers are found as they
are, and so they are on a device that promises no bits: there a prompt's would be no better.

With torch, the KV of a generated position and that of the same token in a prompt differ in their last bits: batches of
another size and another form of attention computed them. A prompt must not give other tokens because of cached blocks
(C16), so the blocks of an answer are computed once more as a prompt, when the engine is idle; that costs a few percent
of what generating them did. An engine that is never idle computes them with the next turn's prompt instead: as many
positions, and none for an answer that has no next turn. docs/decisions/006 gives the reasons.
"""

from collections import deque

from pontil.runtime.engine.prefixes.cache import PrefixCache
from pontil.runtime.engine.prefixes.kv_cache_manager import KVCacheManager
from pontil.runtime.engine.sequences.batch import Batch, Span
from pontil.runtime.engine.sequences.compute_history import ComputeHistory
from pontil.runtime.engine.sequences.sequence import FinishReason, Purpose, Sequence, SequenceState
from pontil.runtime.sampling_params import SamplingParams

MOST_KEPT = 64
# Small, since a request that arrives meanwhile waits for the chunk to end.
CHUNK = 64
NOTHING_DRAWN = SamplingParams(max_tokens=1, seed=0, temperature=0.0)


class AnswerRecompute:
    """Finished answers to compute again, at most MOST_KEPT; the oldest are dropped. Answers that are `found_at_once`
    need no recomputation. Blocks that it holds in `memory` are released on demand."""

    def __init__(self, prefix: PrefixCache, memory: KVCacheManager, block_size: int) -> None:
        self.prefix, self.memory, self.block_size = prefix, memory, block_size
        memory.give_way = self.give_way
        self.found_at_once = False
        self.waiting: deque[Sequence] = deque(maxlen=MOST_KEPT)
        self.current: Sequence | None = None

    @property
    def has_work(self) -> bool:
        return self.current is not None or bool(self.waiting)

    def keep(self, finished: Sequence) -> None:
        """Make a finished answer available to the next turn of its conversation (B3): at once, or after recomputation
        as a prompt."""
        if self.found_at_once:
            self.prefix.register_answer(finished)
        else:
            self.remember(finished)

    def remember(self, finished: Sequence) -> None:
        """Remember an answer if it fills a block beyond its prompt. Its last token was never fed back. One to a prompt
        with images would keep their rows for as long: the next turn's prompt computes it."""
        size = self.block_size
        full = (finished.length - 1) // size
        if full > len(finished.prompt) // size and finished.streams.media is None:
            tokens = (finished.prompt + finished.output)[: full * size]
            history = ComputeHistory(admissions=1, reached=len(tokens))
            self.waiting.append(
                Sequence(
                    "",
                    tokens,
                    NOTHING_DRAWN,
                    frozenset(),
                    Purpose.KV,
                    finished.prefix.behind(0),
                    history=history,
                )
            )

    def next_batch(self) -> Batch | None:
        """Return the next few positions to compute while no other work is to be done."""
        while self.current is None and self.waiting:
            sequence = self.waiting.popleft()
            if self.admit(sequence):
                self.current = sequence
        current = self.current
        if current is None:
            return None
        span = Span(current, current.computed, min(CHUNK, current.remaining))
        has_grown = self.memory.grow(current, span.start + span.count)
        assert has_grown, "what is known of a sequence is reserved"
        return Batch((span,), self.memory.take_copies())

    def admit(self, sequence: Sequence) -> bool:
        """Admit a finished answer to be computed as a prompt, if that takes blocks from no request. It does not
        register its prefix as being computed: a request with the same beginning would wait for a computation that only
        advances while the engine is idle."""
        hit = self.prefix.find(sequence)
        if hit.computed >= sequence.length - 1 or not self.memory.reserve(sequence, hit, 0):
            return False
        self.memory.adopt(sequence, hit)
        sequence.computed = hit.computed
        sequence.move(SequenceState.RUNNING)
        return True

    def advanced(self) -> None:
        """Handle the end of a span: it was computed, and its blocks were registered."""
        if self.current is not None and self.current.remaining == 0:
            self.end(FinishReason.STOP)

    def forget(self, adapter: str) -> None:
        """Drop the answers that would be computed with an adapter of this digest, which leaves memory."""
        self.waiting = deque((one for one in self.waiting if one.prefix.adapter.digest != adapter), MOST_KEPT)
        if self.current is not None and self.current.prefix.adapter.digest == adapter:
            self.end(FinishReason.ABORTED)

    def give_way(self) -> bool:
        """Release the blocks held here, which a request needs. Return whether there were any."""
        if self.current is None:
            return False
        self.end(FinishReason.ABORTED)
        return True

    def end(self, finish: FinishReason) -> None:
        sequence, self.current = self.current, None
        assert sequence is not None and sequence.state is SequenceState.RUNNING
        self.prefix.drop(sequence)
        sequence.end(finish)
        self.memory.give_back(sequence)
