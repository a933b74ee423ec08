# SPDX-License-Identifier: Apache-2.0
"""A draft model: a smaller model that continues an engine's sequences, with KV memory and a prefix cache of its own.

For each sequence that it follows it has another one, the twin, with the same prompt, parameters, seed and known tokens,
and its own guesses behind these. A guess is drawn from the draft model's logits with the number of its position
(runtime/engine/sampling/sampler.py), so that two models that agree draw alike at every temperature.
"""

import time
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.engine.drafts.drafter import Draft
from pontil.runtime.engine.drafts.policy import WINDOW
from pontil.runtime.engine.prefixes.block_shortage import BlockShortage
from pontil.runtime.engine.prefixes.cache import PrefixCache, PrefixHit
from pontil.runtime.engine.prefixes.kv_cache_manager import KVCacheManager
from pontil.runtime.engine.runner.memory_errors import left_out_of
from pontil.runtime.engine.runner.model_runner import ModelRunner
from pontil.runtime.engine.sequences.batch import Batch, Span
from pontil.runtime.engine.sequences.draft_state import DraftState
from pontil.runtime.engine.sequences.sequence import Branch, FinishReason, Sequence, SequenceState
from pontil.runtime.engine.sequences.token_rules import Guide


@dataclass(slots=True)
class Followed:
    """A twin, and how many of its output tokens its sequence is known to have. Of the sequence's output the first
    `before` tokens are not in the twin's."""

    twin: Sequence
    agreed: int
    before: int


class TwinGuide:
    """The guide of a sequence as its twin sees it: the masks of guesses behind the tokens that are known."""

    def __init__(self, sequence: Sequence, guide: Guide, follower: Followed) -> None:
        self.sequence, self.guide, self.follower = sequence, guide, follower
        self.ends, self.failure = guide.ends, guide.failure

    def masks(self, output: list[int], drafts: abc.Sequence[int] = ()) -> list[bytes]:
        guesses = [*output[self.follower.agreed :], *drafts]
        return self.guide.masks(self.sequence.output, guesses)[-1 - len(drafts) :]

    def is_cut(self, count: int) -> bool:
        return False

    def fitting(self, output: list[int], drafts: abc.Sequence[int]) -> int:
        return len(drafts)


class DraftModel:
    """Guesses the next tokens of sequences. The owner of its blocks; a sequence that finds none is not followed.

    Not thread-safe: the engine's thread owns it. `vocab_size` is the target's: an id that only one of the two models
    has is neither read nor proposed. `runs` has the rows and the seconds of each batch since they were last taken. A
    model that `hands_over` guesses for prompts that go to another worker.
    """

    hands_over = False

    def __init__(
        self,
        runner: ModelRunner,
        pool: BlockPool,
        layout: KVLayout,
        vocab_size: int,
        prefix_caching: bool = True,
        clock: Callable[[], float] = lambda: time.monotonic(),
    ) -> None:
        self.runner, self.pool, self.clock = runner, pool, clock
        self.runs: list[tuple[int, float]] = []
        self.prefix = PrefixCache(pool, layout.block_size, prefix_caching)
        self.memory = KVCacheManager(pool, layout)
        self.shape, self.known_ids = runner.model.config, min(vocab_size, runner.model.config.vocab_size)
        self.limits_ids = self.known_ids < vocab_size
        # A mask has a bit for each of the target's logits.
        self.takes_masks = vocab_size == runner.model.config.vocab_size
        self.followers: dict[Sequence, Followed] = {}
        # Sequences for which there was no room, and those of which it does not know some id.
        self.shortages: dict[Sequence, BlockShortage] = {}
        self.unknown: set[Sequence] = set()

    def missing(self, sequence: Sequence) -> int | None:
        """Return how many positions have to be computed before the next guess, from 1 to WINDOW; None where the model
        cannot follow."""
        twin = self.follow(sequence)
        if twin is not None and twin.remaining > WINDOW:
            self.forget(sequence)
            twin = self.follow(sequence)
        return None if twin is None or twin.length >= self.shape.max_model_len else twin.remaining

    def knows(self, sequence: Sequence) -> bool:
        """Return whether the model has every id that the sequence or its parameters name."""
        params = sequence.params
        named_ids = (*params.allowed_token_ids, *params.bad_token_ids, *(token for token, _ in params.logit_bias))
        return max((*sequence.prompt, *sequence.output, *named_ids)) < self.known_ids

    def narrow(self, sequence: Sequence, window: int) -> None:
        """Begin anew with the sequence's last `window` tokens, if more than these are missing."""
        twin = self.follow(sequence)
        if twin is not None and twin.remaining > window:
            self.forget(sequence)
            self.start(sequence, window)

    def read(self, sequence: Sequence, most: int) -> int:
        """Compute at most `most` of the positions that are missing, but never the last one, whose logits give the next
        guess. Return how many were computed."""
        twin = self.follow(sequence)
        count = 0 if twin is None else min(most, twin.remaining - 1)
        if twin is None or count < 1 or not self.grow(twin, count):
            return 0
        self.run([Span(twin, twin.computed, count)])
        return count

    def propose(self, wanted: abc.Sequence[tuple[Sequence, int]]) -> list[Draft]:
        """Guess so many next tokens of each sequence, all of them together, one position at a time. A sequence that
        cannot be followed, or for whose guesses there is no room, has fewer."""
        twins = [(self.follow(sequence), count) for sequence, count in wanted]
        starts = [0 if twin is None else twin.length for twin, _ in twins]
        for ahead in range(max((count for _, count in twins), default=0)):
            spans = [
                Span(twin, twin.computed, twin.remaining)
                for twin, count in twins
                if twin is not None and ahead < count and self.can_go_on(twin, ahead)
            ]
            if not spans:
                break
            self.run(spans)
        return [
            () if twin is None else self.guesses(twin, start) for (twin, _), start in zip(twins, starts, strict=True)
        ]

    def can_go_on(self, twin: Sequence, ahead: int) -> bool:
        """Return whether there is room for the twin's missing positions. After the first guess only one is missing:
        none if the grammar ends here, more if there was no room before."""
        if twin.remaining < 1 or (ahead and twin.remaining > 1) or twin.length >= self.shape.max_model_len:
            return False
        return self.grow(twin, twin.remaining)

    def guesses(self, twin: Sequence, start: int) -> Draft:
        """Return the twin's tokens from this position on, up to one that the target does not have."""
        tokens = twin.output[start - len(twin.prompt) :]
        return tuple(tokens[: next((at for at, token in enumerate(tokens) if token >= self.known_ids), None)])

    def run(self, spans: list[Span]) -> None:
        """Compute spans; a twin whose last known position is among them gets a guess. One that memory does not suffice
        for gets none, and stays where it was."""
        began = self.clock()
        samples = self.runner.run(Batch(tuple(spans), self.memory.take_copies()))
        self.runs.append((sum(span.count for span in spans), self.clock() - began))
        left_out = left_out_of(samples)
        for span in spans:
            if span.sequence in left_out:
                continue
            span.sequence.advance(span.start + span.count)
            self.prefix.register(span.sequence, span.start, span.sequence.computed)
        for sample in samples:
            sample.sequence.output += sample.tokens

    def follow(self, sequence: Sequence) -> Sequence | None:
        """Return the twin with the sequence's known tokens, without guesses; None where there is no room for one."""
        follower = self.followers.get(sequence) or self.start(sequence)
        if follower is None:
            return None
        self.agree(sequence, follower)
        return follower.twin

    def agree(self, sequence: Sequence, follower: Followed) -> None:
        """Replace the twin's guesses by the tokens that came since. What was computed stays as far as they are equal;
        the last known position is always still to be computed."""
        twin, tokens = follower.twin, sequence.output[follower.before + follower.agreed :]
        guesses = twin.output[follower.agreed :]
        right = next((at for at, (a, b) in enumerate(zip(guesses, tokens, strict=False)) if a != b), None)
        right = min(len(guesses), len(tokens)) if right is None else right
        valid = len(twin.prompt) + follower.agreed + right
        twin.output[follower.agreed :] = tokens
        twin.count_from(min(twin.computed, valid, twin.length - 1))
        follower.agreed = len(twin.output)

    def start(self, sequence: Sequence, window: int = WINDOW) -> Followed | None:
        """Follow a sequence, from the end of what the prefix cache has of its prompt. Of what is then still missing
        only the last `window` tokens are read."""
        shortage = self.shortages.get(sequence)
        if sequence in self.unknown or (shortage is not None and shortage.lasts(sequence, self.pool, 1)):
            return None
        if self.limits_ids and not self.knows(sequence):
            self.unknown.add(sequence)
            return None
        twin, hit = self.begin(sequence, window)
        if twin.length >= self.shape.max_model_len:
            return None
        if not self.memory.reserve(twin, hit, 1):
            lacking, missing = self.memory.lacking(twin, hit, 1), self.prefix.missing(twin, hit)
            self.shortages[sequence] = BlockShortage(sequence, lacking, self.pool.returned, 1, missing)
            return None
        self.memory.adopt(twin, hit)
        twin.count_from(hit.computed)
        twin.move(SequenceState.RUNNING)
        known_tokens = len(twin.output)
        follower = self.followers[sequence] = Followed(twin, known_tokens, len(sequence.output) - known_tokens)
        if sequence.guide is not None and self.takes_masks:
            twin.rules.make_guide = partial(TwinGuide, sequence, sequence.guide, follower)
        return follower

    def begin(self, sequence: Sequence, window: int) -> tuple[Sequence, PrefixHit]:
        """Return a twin for a sequence, and the part of it that is computed already."""
        twin = twin_of(sequence, 0)
        hit = self.prefix.find(twin)
        if twin.length - hit.computed > window:
            twin = twin_of(sequence, sequence.length - window)
            hit = self.prefix.find(twin)
        return twin, hit

    def grow(self, twin: Sequence, count: int) -> bool:
        """Make room for `count` positions from the first that is not computed."""
        return self.memory.own_next(twin) and self.memory.grow(twin, twin.computed + count)

    def forget(self, sequence: Sequence) -> None:
        """Free the blocks of a sequence that has ended. Those that its answer filled are found by the next turn of the
        conversation."""
        follower = self.followers.pop(sequence, None)
        self.shortages.pop(sequence, None)
        self.unknown.discard(sequence)
        if follower is None:
            return
        self.agree(sequence, follower)
        twin = follower.twin
        if self.prefix.enabled and not twin.drafting.skipped:
            self.prefix.register_answer(twin)
        twin.end(FinishReason.STOP)
        self.memory.give_back(twin)


def twin_of(sequence: Sequence, skipped: int) -> Sequence:
    """Return a sequence that draws as this one does, whose text begins after the first `skipped` tokens."""
    skipped_output = max(0, skipped - len(sequence.prompt))
    prompt, output = sequence.prompt[skipped:], sequence.output[skipped_output:]
    if not prompt:
        # A text that begins inside the answer: its first token stands for a prompt.
        prompt, output = output[:1], output[1:]
    spent_tokens = len(sequence.output) - len(output)
    params = replace(
        sequence.params,
        n=1,
        logprobs=None,
        prompt_logprobs=None,
        logprob_token_ids=(),
        grammar=None,
        max_tokens=sequence.params.max_tokens - spent_tokens,
        min_tokens=max(0, sequence.params.min_tokens - spent_tokens),
    )
    return Sequence(
        sequence.id,
        prompt,
        params,
        sequence.stop_token_ids,
        prefix=sequence.prefix.behind(skipped),
        branch=Branch(sequence.branch.choice, forked=True),
        output=output,
        drafting=DraftState(skipped=skipped),
    )
