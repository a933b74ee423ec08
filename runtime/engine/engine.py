# SPDX-License-Identifier: Apache-2.0
"""The engine: sequences in, accepted tokens out, one step at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from pontil.runtime.engine.runner.memory_errors import MEMORY_RAN_OUT, left_out_of
from pontil.runtime.engine.runner.runner import Launched, Runner
from pontil.runtime.engine.sampling.sampler import Sampled
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.engine.sequences.batch import Batch, Span
from pontil.runtime.engine.sequences.output_record import Known
from pontil.runtime.engine.sequences.remote_prefill import NoHandshake, RemotePrefill
from pontil.runtime.engine.sequences.sequence import FinishReason, Sequence, SequenceState
from pontil.runtime.engine.sequences.token_logprobs import TokenLogprobs
from pontil.runtime.foundation.value import value

AT_ONCE = NoHandshake()


@dataclass(slots=True)
class DraftCounts:
    """`drafts` is the number of drafts, of one or more guesses each, that steps verified; `guessed` and `right` count
    their guesses, `right_at` those that were right by their place in the draft."""

    drafts: int = 0
    guessed: int = 0
    right: int = 0
    right_at: list[int] = field(default_factory=list)

    def add(self, guessed: int, right: int) -> None:
        """Count one draft. The right guesses are its first ones."""
        if guessed:
            self.drafts += 1
            self.guessed += guessed
            self.right += right
            self.right_at += [0] * (right - len(self.right_at))
            for place in range(right):
                self.right_at[place] += 1


@value(frozen=True, slots=True)
class Output:
    """The result of a step for one sequence: tokens accepted from `index` on, `count` of them in this step, with their
    logprobs if requested, and the finish reason, if it ended. All tokens were sampled; of `drafted` that had been
    guessed before, `accepted` were right (B1). `opens`: this is the first result of a request whose prompt was computed
    here. `failure`: the reason why the sequence ended with an error, since its grammar allows no token. `frames` has
    all codes of each token's frame, where a step makes several."""

    sequence: Sequence
    index: int
    ids: list[int]
    count: int
    finish: FinishReason | None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    opens: bool = False
    drafted: int = 0
    accepted: int = 0
    failure: str | None = None
    frames: list[list[int]] = field(default_factory=list)


@value(frozen=True, slots=True)
class StepInFlight:
    """A step that was launched at `began`, and whose results have not been accepted. No other one is launched before
    they are if it is `alone`. The drafter hears of it if it was `asked` for drafts."""

    batch: Batch
    launched: Launched
    began: float
    asked: bool
    alone: bool = False

    @property
    def rows(self) -> int:
        return sum(span.count for span in self.batch.spans)

    def waited(self) -> StepInFlight:
        """Wait until it is over. Its results stay to be accepted."""
        samples = self.launched.collect()
        launch = Launched(lambda: samples, self.launched.places, self.launched.left_out)
        return replace(self, launched=launch, alone=True)

    def note_chunks(self, end: float) -> list[Sequence]:
        """Note the time of the step with each sequence of whose prompt it computed a part. Return those of whose prompt
        this was the first part, and not the last."""
        left_out, begun_sequences = self.launched.left_out, list[Sequence]()
        for span in self.batch.spans:
            times = span.sequence.history.times
            if span.start < len(span.sequence.prompt) and times is not None and span.sequence not in left_out:
                if not times.chunks.rows and span.start + span.count < len(span.sequence.prompt):
                    begun_sequences.append(span.sequence)
                times.chunks.add(self.began, end, span.count)
        return begun_sequences


class Engine:
    """The engine, which knows nothing of processes or text. Call `add`, then `step` until `has_work` is False.

    `sequences` has the unfinished sequences of each request, by its id: one, or one for each choice. `generated` counts
    the tokens sampled since the start; every one of them is in an Output. `prompt_computed` counts the prompt tokens
    computed for the first time, of prompts whose opening Output was made; `drafted` and `accepted` add up those of all
    Outputs.

    The prompts of `begun` had their first part in the last step, and will have another. The step whose results came
    last computed the spans `collected`.

    Where a runner does not compute at once, a step may be `in_flight` while the next one is scheduled and launched, the
    draws of which are started later if they need tokens of the one before. The tokens of both are the same as if each
    step were waited for.
    """

    def __init__(self, runner: Runner, scheduler: Scheduler) -> None:
        self.runner, self.scheduler = runner, scheduler
        scheduler.answer_recompute.found_at_once = runner.answers_are_found
        self.sequences: dict[str, list[Sequence]] = {}
        self.generated = self.prompt_computed = 0
        self.drafts = DraftCounts()
        self.in_flight: StepInFlight | None = None
        self.begun: list[Sequence] = []
        self.collected: tuple[Span, ...] = ()

    @property
    def drafted(self) -> int:
        return self.drafts.guessed

    @property
    def accepted(self) -> int:
        return self.drafts.right

    @property
    def has_work(self) -> bool:
        return self.in_flight is not None or self.scheduler.has_work

    def add(self, sequence: Sequence, known: list[Known] | None = None) -> None:
        """Queue a sequence to be computed here from its first token on. If it is continued, `known` has the known
        tokens of each of its choices."""
        self.sequences[sequence.id] = self.scheduler.add(sequence, known)

    def park(self, sequence: Sequence, remote: RemotePrefill = AT_ONCE) -> bool:
        """Queue a sequence whose KV will come from elsewhere. Return whether there is room for it now; else `remote` is
        called when there is."""
        self.sequences[sequence.id] = [sequence]
        return self.scheduler.park(sequence, remote)

    def promote(self, sequence: Sequence, computed: int, known: list[Known] | None) -> None:
        """Run a parked sequence whose KV has arrived: its choices continue from their first tokens, or draw them."""
        self.sequences[sequence.id] = self.scheduler.promote(sequence, computed, known)

    def take_back(self, sequence: Sequence, reached: int = 0, arrived: int = 0) -> None:
        """Remove a sequence that was parked, whose KV has not come, or cannot be used now; `add` has it computed here.
        Its first `arrived` positions may be found in the prefix cache, and those before `reached` were computed
        elsewhere. One that was never parked is no error."""
        if self.sequences.pop(sequence.id, None):
            self.scheduler.take_back(sequence, reached, arrived)

    def end(self, request: str, finish: FinishReason) -> None:
        """End all unfinished sequences of a request, in any state. An unknown request is no error."""
        for sequence in self.sequences.pop(request, ()):
            sequence.forget_drawn()
            self.scheduler.finish(sequence, finish)

    def step(self) -> list[Output]:
        """Launch a step, then collect the one before if it is still in flight, else this one. The results are those of
        the one step that was collected."""
        before, self.in_flight, self.begun, self.collected = self.in_flight, None, [], ()
        if before is not None and before.alone:
            return self.settle(before)
        step = self.launch(self.scheduler.schedule())
        alone = not self.may_stay_in_flight(step)
        if before is None:
            if alone:
                return self.settle(step)
            self.in_flight = step
            return []
        if not step.batch.spans:
            return self.settle(before)
        outputs = self.collect(before)
        step.launched.draw()
        self.in_flight = step.waited() if alone else step
        self.scheduler.memory.landed()
        return outputs

    def settle(self, step: StepInFlight) -> list[Output]:
        """Collect the only step in flight."""
        outputs = self.collect(step)
        self.scheduler.memory.launched(())
        self.scheduler.memory.landed()
        return outputs

    def launch(self, batch: Batch) -> StepInFlight:
        began = self.scheduler.clock()
        launch = self.runner.launch(batch)
        self.scheduler.advance(batch.without(launch.left_out))
        if launch.late:
            self.scheduler.memory.launched(span.sequence for span in batch.spans)
        for span in batch.spans:
            span.sequence.history.mark = launch.mark
        for sequence, place in launch.places.items():
            sequence.drawn(place)
        return StepInFlight(batch, launch, began, self.scheduler.drafts.asked)

    def may_stay_in_flight(self, step: StepInFlight) -> bool:
        """Return whether the next step may be launched before this one is over. Not if something reads what it computed
        as soon as it is marked as computed, or needs its tokens, or if requests end with it."""
        if not step.launched.late or step.launched.left_out:
            return False
        if self.scheduler.held_up or self.scheduler.drafts.has_room:
            return False
        for span in step.batch.spans:
            sequence = span.sequence
            if sequence.is_streamed or sequence.params.prompt_logprobs is not None:
                return False
            # Without a mark the last block is made ready for a peer behind all that is launched.
            if step.launched.mark is None and sequence.hands_over and sequence.computed >= len(sequence.prompt):
                return False
        return True

    def collect(self, step: StepInFlight) -> list[Output]:
        """Wait for a step, and accept its tokens. Those of a sequence that ended meanwhile are dropped: the token that
        ended it was not known when they were drawn."""
        samples = [sample if sample.sequence.output else as_given(sample) for sample in step.launched.collect()]
        end = self.scheduler.clock()
        if step.asked:
            self.scheduler.drafts.drafter.computed(step.batch, end - step.began)
        if self.scheduler.queues.seats.lent:
            self.scheduler.background.computed(step.rows, step.began, end)
        self.begun, self.collected = step.note_chunks(end), step.batch.spans
        if samples:
            # Sequences may have waited for these tokens.
            self.scheduler.stalled = False
        alive = [sample for sample in samples if sample.sequence.state is not SequenceState.FINISHED]
        # All forks are made before any token is accepted: a choice that ends at once must not release the blocks of the
        # others.
        owners = [
            sample.sequence
            if sample.choice == sample.sequence.branch.choice
            else self.fork(sample.sequence, sample.choice)
            for sample in alive
        ]
        appended = list(map(append, owners, alive))
        step.launched.accepted()
        return list(map(self.accept, owners, alive, appended))

    def keep_answers(self) -> bool:
        """Compute finished answers for the prefix cache while idle. Return False when there is none to compute."""
        idle = self.scheduler.has_spare_work and self.in_flight is None
        batch = self.scheduler.answer_recompute.next_batch() if idle else None
        if batch is None:
            return False
        if left_out_of(self.runner.run(batch)):
            self.scheduler.answer_recompute.give_way()
        else:
            self.scheduler.advance(batch)
            self.scheduler.answer_recompute.advanced()
        return True

    def fork(self, stem: Sequence, choice: int) -> Sequence:
        """Return the sequence of one more choice."""
        fork = self.scheduler.fork(stem, choice)
        self.sequences[stem.id].append(fork)
        return fork

    def accept(self, sequence: Sequence, sample: Sampled, appended: tuple[int, FinishReason | None]) -> Output:
        """Turn sampled tokens, which were appended, into a result; the only place that does (rules B)."""
        record, (before, finish) = sequence.record, appended
        is_new = record.generated == 0
        opens = is_new and opens_request(sequence, sample)
        if opens:
            self.prompt_computed += sequence.history.prompt_computed
        # Tokens sampled after the end are not part of the answer: they followed a draft, which counts as rejected.
        count = sample.count - (before + len(sample.tokens) - len(sequence.output))
        record.generated += count
        self.generated += count
        num_accepted = 0
        if sample.drafted:
            num_accepted = max(0, min(count, len(sample.tokens) - 1))
            self.drafts.add(sample.drafted, num_accepted)
        if self.scheduler.drafts.most:
            self.scheduler.drafts.drafter.verified(sequence, sample.drafted, num_accepted)
        if sample.count == 0 and sample.failure is None:
            record.delivered = len(sequence.output)
        if sample.failure is not None:
            finish = FinishReason.ERROR
        elif finish is None and sequence.hands_over:
            finish = FinishReason.HANDED_OVER
        if finish is not None:
            self.close(sequence, finish)
        # The first frame after a handoff repeats the tokens that came with it: the sender's own frame may be lost.
        first = is_new and record.received > 0
        index = record.delivered if first or record.delivered == len(sequence.output) else before
        ids, logprobs = sequence.output[index:], record.logprobs and record.logprobs_from(index)
        inputs = sequence.streams.inputs
        frames = [] if inputs is None else inputs.frames[index:]
        return Output(
            sequence, index, ids, count, finish, logprobs, opens, sample.drafted, num_accepted, sample.failure, frames
        )

    def close(self, sequence: Sequence, finish: FinishReason) -> None:
        sequence.forget_drawn()
        self.scheduler.finish(sequence, finish)
        siblings = self.sequences[sequence.id]
        siblings.remove(sequence)
        if not siblings:
            del self.sequences[sequence.id]

    @property
    def unfinished(self) -> Iterable[Sequence]:
        return (sequence for some in self.sequences.values() for sequence in some)


def append(sequence: Sequence, sample: Sampled) -> tuple[int, FinishReason | None]:
    """Append sampled tokens to their sequence, and go back over drafts that were rejected. Return the number of tokens
    before, and the reason if the sequence ends."""
    assert sequence.state in (SequenceState.RUNNING, SequenceState.PAUSED)
    before = len(sequence.output)
    finish = sequence.append_all(sample.tokens, sample.logprobs)
    if sequence.streams.inputs is not None:
        for frame in sample.frames:
            sequence.streams.inputs.take_frame(frame)
    if sample.drafted or not sample.tokens:
        sequence.roll_back()
    return before, finish


def opens_request(sequence: Sequence, sample: Sampled) -> bool:
    """Return whether the first tokens sampled of a sequence are the first result of a request whose prompt was computed
    here. Without memory it was not computed to its end: nothing is stated of it."""
    is_computed = sample.failure != MEMORY_RAN_OUT and sequence.history.scheduled_at is not None
    return is_computed and sequence.branch.leads


def as_given(sample: Sampled) -> Sampled:
    """Return a first token that the client already has as it is: it counts as not generated, whichever token was
    sampled in its place. Of a request without a budget only the prompt is computed. Neither says anything of a prompt
    for which memory did not suffice."""
    if sample.failure == MEMORY_RAN_OUT:
        return sample
    if sample.sequence.params.max_tokens == 0:
        return replace(sample, tokens=[], count=0, logprobs=[], failure=None)
    token = sample.sequence.branch.given.get(sample.choice)
    if token is None or sample.sequence.output:
        return sample
    return replace(sample, tokens=[token], count=0, logprobs=[], failure=None)
