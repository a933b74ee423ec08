# SPDX-License-Identifier: Apache-2.0
"""Recorded conversations, and their turns in virtual time: each is asked a while after the answer of the one before."""

import csv
import random
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path

LENGTHS = Path(__file__).parents[3] / "scripts" / "data" / "sharegpt_lengths.csv"
# Prompt tokens a second, seconds for each token of an answer, and what each other sequence adds to it.
PROMPT_RATE, TOKEN_SECONDS, BESIDE = 4000.0, 0.02, 0.03
# The ids that are drawn.
FIRST_ID, LAST_ID = 100, 150_000


@dataclass(frozen=True)
class Turn:
    """One turn: its prompt is what was said before and these new tokens."""

    new: int
    output: int


def recorded_conversations(path: Path = LENGTHS) -> list[list[Turn]]:
    """Return the turns of each conversation."""
    found: dict[str, list[Turn]] = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            new = int(row["prompt_tokens"]) - int(row["shared_prefix_tokens"])
            found[row["conversation"]].append(Turn(max(1, new), int(row["output_tokens"])))
    return list(found.values())


class RecordedLoad(ABC):
    """Conversations over something that answers their turns (`ask_turn`) and works while it has any (`works`, `work`).
    `now` is the time in seconds, which moves from event to event, and with the work. `run` plays conversations and
    returns when all have ended."""

    def __init__(self, seed: int = 1) -> None:
        self.source, self.now, self.order = random.Random(seed), 0.0, 0
        self.events: list[tuple[float, int, Callable[[], None]]] = []

    @abstractmethod
    def ask_turn(self, said: list[int], turn: Turn, answered: Callable[[list[int]], None]) -> None:
        """Ask for the turn behind what was said; call `answered` with all that is said by its end."""

    @property
    @abstractmethod
    def works(self) -> bool:
        """Return whether there is anything to do now."""

    @abstractmethod
    def work(self) -> None:
        """Do what can be done now. It may take time."""

    def at(self, seconds: float, what: Callable[[], None]) -> None:
        self.order += 1
        heappush(self.events, (self.now + seconds, self.order, what))

    def run(self, conversations: Sequence[Sequence[Turn]], rate: float, pause: float = 8.0) -> None:
        """Begin so many conversations a second at random, with a random pause of this mean before each later turn."""
        moment = 0.0
        for turns in conversations:
            moment += self.source.expovariate(rate)
            self.at(moment, self.turn_of([], turns, pause))
        while self.events or self.works:
            if not self.works:
                self.now = max(self.now, self.events[0][0])
            while self.events and self.events[0][0] <= self.now:
                heappop(self.events)[2]()
            self.work()

    def turn_of(self, said: list[int], turns: Sequence[Turn], pause: float) -> Callable[[], None]:
        def answered(text: list[int]) -> None:
            if len(turns) > 1:
                self.at(self.source.expovariate(1 / pause), self.turn_of(text, turns[1:], pause))

        return lambda: self.ask_turn(said, turns[0], answered)

    def ids(self, count: int) -> list[int]:
        return [self.source.randrange(FIRST_ID, LAST_ID) for _ in range(count)]
