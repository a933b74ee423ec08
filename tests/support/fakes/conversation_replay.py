# SPDX-License-Identifier: Apache-2.0
"""Recorded conversations over one worker's engine without a model: real scheduler, pool and prefix cache, in virtual
time."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from routing_world import BESIDE, PROMPT_RATE, TOKEN_SECONDS, Turn
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
        return [Sampled(one, 0, [replay.source.randrange(100, 150_000)], 1, []) for one in drawing]

    def beside(self, storage: KVStorage) -> "RandomRunner":
        return RandomRunner(self.replay)


@dataclass
class AskedTurn:
    """A turn that is being answered: `said` tokens of its prompt were said in turns before."""

    sequence: EngineSequence
    said: int
    answered: Callable[[list[int]], None]


class ConversationReplay:
    """`said` counts the prompt tokens that earlier turns of their conversation had, and `cached` those of them that
    were found; `copied` are the blocks of a model with states that were copied so that others stay as they are."""

    def __init__(self, layout: KVLayout, num_blocks: int, seed: int = 1) -> None:
        self.source, self.now, self.order = random.Random(seed), 0.0, 0
        self.pool = BlockPool(num_blocks)
        scheduler = Scheduler(self.pool, layout, SEATS, StepBudget(STEP_TOKENS), clock=lambda: self.now)
        self.engine = Engine(RandomRunner(self), scheduler)
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.asked: dict[str, AskedTurn] = {}
        self.said = self.cached = self.copied = self.turns = 0

    @property
    def share(self) -> float:
        """The part of what could be found that was."""
        return self.cached / self.said

    def at(self, seconds: float, what: Callable[[], None]) -> None:
        self.order += 1
        heappush(self.events, (self.now + seconds, self.order, what))

    def run(self, conversations: Sequence[Sequence[Turn]], rate: float, pause: float = 8.0) -> None:
        """Begin so many conversations a second at random, with a random pause of this mean before each later turn."""
        moment = 0.0
        for turns in conversations:
            moment += self.source.expovariate(rate)
            self.at(moment, self.turn_of([], turns, pause))
        while self.events or self.asked:
            if not self.engine.has_work:
                self.now = max(self.now, self.events[0][0])
            while self.events and self.events[0][0] <= self.now:
                heappop(self.events)[2]()
            for output in self.engine.step():
                if output.finish is not None:
                    self.end(self.asked.pop(output.sequence.id))
        self.pool.check()

    def turn_of(self, said: list[int], turns: Sequence[Turn], pause: float) -> Callable[[], None]:
        def answered(text: list[int]) -> None:
            if len(turns) > 1:
                self.at(self.source.expovariate(1 / pause), self.turn_of(text, turns[1:], pause))

        def begin() -> None:
            prompt = [*said, *(self.source.randrange(100, 150_000) for _ in range(turns[0].new))]
            made = sequence(str(self.order), prompt, max(1, turns[0].output))
            self.order += 1
            self.asked[made.id] = AskedTurn(made, len(said), answered)
            self.engine.add(made)

        return begin

    def end(self, asked: AskedTurn) -> None:
        one = asked.sequence
        self.turns += 1
        self.said += asked.said
        self.cached += min(one.history.cached, asked.said)
        asked.answered(one.prompt + one.output)


def states_layout(boundary: int) -> KVLayout:
    """A layout of blocks with states that end after so many positions."""
    return KVLayout(boundary, 1, 1, 8, "float32", page_tokens=16, state_numbers=64)
