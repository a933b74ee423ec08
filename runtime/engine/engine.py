# SPDX-License-Identifier: Apache-2.0
"""The engine: sequences in, accepted tokens out, one step at a time."""

from dataclasses import dataclass

from pontil.runtime.engine.batch import Batch
from pontil.runtime.engine.runner import Runner
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.engine.sequence import Finish, Sequence, State


@dataclass(frozen=True, slots=True)
class Output:
    """What a step did for one sequence: tokens accepted from `index` on, and how it ended, if it did."""

    sequence: Sequence
    index: int
    ids: list[int]
    finish: Finish | None


class Engine:
    """Knows nothing of processes or text. `add`, then `step` until `has_work` is False."""

    def __init__(self, runner: Runner, scheduler: Scheduler) -> None:
        self.runner, self.scheduler = runner, scheduler
        self.sequences: dict[str, Sequence] = {}

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence to be computed here from its first token on."""
        self.sequences[sequence.id] = sequence
        self.scheduler.add(sequence)

    def park(self, sequence: Sequence) -> bool:
        """Make room for a sequence whose KV will come from elsewhere; False when there is none now."""
        if not self.scheduler.park(sequence):
            return False
        self.sequences[sequence.id] = sequence
        return True

    def end(self, sequence_id: str, finish: Finish) -> Sequence | None:
        """End a sequence from outside, in whatever state it is. None when it is not here (any more)."""
        sequence = self.sequences.pop(sequence_id, None)
        if sequence is not None:
            self.scheduler.finish(sequence, finish)
        return sequence

    def step(self) -> list[Output]:
        batch = self.scheduler.schedule()
        sampled = self.runner.run(batch)
        self.advance(batch)
        return [output for one in sampled for output in [self.accept(one.sequence, one.token)] if output]

    def advance(self, batch: Batch) -> None:
        for span in batch.spans:
            span.sequence.computed = span.start + span.count

    def accept(self, sequence: Sequence, token: int) -> Output | None:
        """The one place where a sampled token becomes a result (SPEC B): a sequence that ended meanwhile gets none."""
        if self.sequences.get(sequence.id) is not sequence or sequence.state is not State.RUNNING:
            return None
        first = sequence.received and sequence.generated == 0
        finish = sequence.append(token)
        if finish is None and sequence.hands_over:
            finish = Finish.HANDED_OVER
        if finish is not None:
            self.end(sequence.id, finish)
        # The first frame after a handoff repeats the tokens that came with it: the sender's own frame may be lost.
        index = 0 if first else len(sequence.output) - 1
        return Output(sequence, index, sequence.output[index:], finish)
