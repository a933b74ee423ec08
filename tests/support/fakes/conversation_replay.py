# SPDX-License-Identifier: Apache-2.0
"""Recorded conversations over one worker's engine without a model: real scheduler, pool and prefix cache, in virtual
time."""

from collections.abc import Callable
from dataclasses import dataclass

from recorded_load import BESIDE, PROMPT_RATE, TOKEN_SECONDS, RecordedLoad, Turn
from tiny import sequence

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.prompt_turns import StepBudget
from pontil.runtime.engine.runner.runner import Launched
from pontil.runtime.engine.sampling.sampler import Sampled
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.engine.sequences.batch import Batch
from pontil.runtime.engine.sequences.sequence import Sequence as EngineSequence

SEATS, STEP_TOKENS = 32, 2048


class RandomRunner:
    """A runner that draws any ids, and takes time."""

    answers_are_found, keeps_states = True, False

    def __init__(self, replay: "ConversationReplay") -> None:
        self.replay = replay

    def launch(self, batch: Batch) -> Launched:
        sampled = self.run(batch)
        return Launched(lambda: sampled)

    def run(self, batch: Batch) -> list[Sampled]:
        replay = self.replay
        drawing = [span.sequence for span in batch.spans if span.samples]
        rows = sum(span.count for span in batch.spans)
        replay.now += TOKEN_SECONDS * (1 + BESIDE * len(drawing)) + (rows - len(drawing)) / PROMPT_RATE
        replay.copied += len(batch.copies)
        return [Sampled(one, 0, replay.ids(1), 1, []) for one in drawing]

    def beside(self, storage: KVStorage) -> "RandomRunner":
        return RandomRunner(self.replay)


@dataclass
class AskedTurn:
    """A turn that is being answered: `said` tokens of its prompt were said in turns before."""

    sequence: EngineSequence
    said: int
    answered: Callable[[list[int]], None]


class ConversationReplay(RecordedLoad):
    """`said` counts the prompt tokens that earlier turns of their conversation had, and `cached` those of them that
    were found; `copied` are the blocks of a model with states that were copied so that others stay as they are."""

    def __init__(self, layout: KVLayout, num_blocks: int, seed: int = 1) -> None:
        super().__init__(seed)
        self.pool = BlockPool(num_blocks)
        scheduler = Scheduler(self.pool, layout, SEATS, StepBudget(STEP_TOKENS), clock=lambda: self.now)
        self.engine = Engine(RandomRunner(self), scheduler)
        self.asked: dict[str, AskedTurn] = {}
        self.said = self.cached = self.copied = self.turns = 0

    @property
    def share(self) -> float:
        """The part of what could be found that was."""
        return self.cached / self.said

    @property
    def works(self) -> bool:
        return self.engine.has_work

    def work(self) -> None:
        for output in self.engine.step():
            if output.finish is not None:
                self.end(self.asked.pop(output.sequence.id))
        if not self.works:
            self.pool.check()

    def ask_turn(self, said: list[int], turn: Turn, answered: Callable[[list[int]], None]) -> None:
        made = sequence(str(self.turns + len(self.asked)), said + self.ids(turn.new), max(1, turn.output))
        self.asked[made.id] = AskedTurn(made, len(said), answered)
        self.engine.add(made)

    def end(self, asked: AskedTurn) -> None:
        one = asked.sequence
        self.turns += 1
        self.said += asked.said
        self.cached += min(one.history.cached, asked.said)
        asked.answered(one.prompt + one.output)


def states_layout(boundary: int) -> KVLayout:
    """A layout of blocks with states that end after so many positions."""
    return KVLayout(boundary, 1, 1, 8, "float32", page_tokens=16, state_numbers=64)
