# SPDX-License-Identifier: Apache-2.0
"""The division of a step's prompt budget among the prompts that are being computed. Touches no tensor and no clock.

A lower priority number goes first. Within one priority, callers get positions in proportion to their weights, by
start-time fair queueing (Goyal, Vin and Cheng, 1996), and each caller's prompts take turns. A turn is a tile of queries
or less, as attention computes whole tiles. Every other turn of a caller goes to a prompt that has had none: a short one
has its first token soon, however many long ones there are, and a stream of short ones takes half of the turns at most.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace

from pontil.gpu_ops.kv.attention import QUERY_TILE
from pontil.runtime.engine.sequences.sequence import Sequence


@dataclass(frozen=True, slots=True)
class StepBudget:
    """The most prompt positions that a step computes: `whole`, or `interleaved` beside sequences that decode (None: as
    many)."""

    whole: int
    interleaved: int | None = None

    def of_step(self, decodes: bool) -> int:
        return min(self.interleaved or self.whole, self.whole) if decodes else self.whole


class PromptTurns:
    """The turns of one engine. It remembers callers and prompts while they have something to compute in every step."""

    def __init__(self) -> None:
        self.levels: dict[int, TurnLevel] = {}

    def divide(self, prompts: Iterable[Sequence], budget: int) -> dict[Sequence, int]:
        """Return how many of their next positions these prompts, in scheduling order, compute in a step of at most
        `budget`. A chunk that is not the last of its prompt ends on the boundary of a tile of queries, if it reaches
        one."""
        levels: dict[int, list[Sequence]] = {}
        for sequence in prompts:
            levels.setdefault(sequence.standing.priority, []).append(sequence)
        self.levels = {priority: self.levels.get(priority) or TurnLevel() for priority in levels}
        counts: dict[Sequence, int] = {}
        for priority, some in levels.items():
            budget = self.levels[priority].divide(some, budget, counts)
        return counts


@dataclass(slots=True)
class CallerPrompts:
    """One caller's prompts in a step: those without a turn before, oldest first, and the others, in the order of their
    last turns. The next turn begins at the virtual time `start`."""

    start: float
    place: int
    weight: float = 0.0
    new_is_next: bool = True
    new: deque[Sequence] = field(default_factory=deque)
    begun: deque[Sequence] = field(default_factory=deque)

    def __lt__(self, other: "CallerPrompts") -> bool:
        return (self.start, self.place) < (other.start, other.place)

    @property
    def next(self) -> deque[Sequence]:
        """Return the line whose first prompt has the next turn; an empty one where there is no prompt."""
        return self.new if self.new and (self.new_is_next or not self.begun) else self.begun


@dataclass(slots=True)
class TurnLevel:
    """The turns at one priority. `time` is the virtual time at which a caller begins that was not here before, and
    `taken` the number of the last turn of each prompt that has had one."""

    time: float = 0.0
    number: int = 0
    callers: dict[str, CallerPrompts] = field(default_factory=dict)
    taken: dict[Sequence, int] = field(default_factory=dict)

    def divide(self, prompts: list[Sequence], budget: int, counts: dict[Sequence, int]) -> int:
        """Add the counts of these prompts; return what is left of the budget."""
        self.line_up(prompts)
        turns = list(self.callers.values())
        weight = sum(caller.weight for caller in turns)
        heapify(turns)
        while turns and budget:
            caller = turns[0]
            line = caller.next
            if not line:
                heappop(turns)
                continue
            sequence = line.popleft()
            prior_count = counts.get(sequence, 0)
            count = turn(sequence.computed + prior_count, sequence.due - prior_count, budget, is_first=not prior_count)
            if count:
                counts[sequence] = prior_count + count
                budget -= count
                self.take(caller, sequence, count, weight)
                if prior_count + count < sequence.due:
                    caller.begun.append(sequence)
                heapreplace(turns, caller)
        return budget

    def take(self, caller: CallerPrompts, sequence: Sequence, count: int, weight: float) -> None:
        """Note a turn. The level's time moves by the share of all callers at least, so that those who come new again
        and again do not hold up the others."""
        self.number += 1
        caller.new_is_next = sequence in self.taken
        self.taken[sequence] = self.number
        self.time = max(caller.start, self.time + count / weight)
        caller.start += count / caller.weight

    def line_up(self, prompts: list[Sequence]) -> None:
        """Sort the prompts of this step by caller, and forget those that are not among them."""
        self.taken = {prompt: self.taken[prompt] for prompt in prompts if prompt in self.taken}
        before, self.callers = self.callers, {}
        for sequence in prompts:
            name = sequence.standing.share.caller
            caller = self.callers.get(name)
            if caller is None:
                previous = before.get(name)
                start, new_is_next = (self.time, True) if previous is None else (previous.start, previous.new_is_next)
                caller = self.callers[name] = CallerPrompts(start, len(self.callers), new_is_next=new_is_next)
            caller.weight = max(caller.weight, sequence.standing.share.weight)
            if sequence not in self.taken:
                caller.new.append(sequence)
        for sequence in sorted(self.taken, key=self.taken.__getitem__):
            self.callers[sequence.standing.share.caller].begun.append(sequence)


def turn(start: int, remaining: int, budget: int, is_first: bool) -> int:
    """Return how many positions from `start` on are a prompt's next turn in a step: up to the end of the tile that they
    are in. Where the budget ends before that, only the first turn of the step takes what is left."""
    count = min(remaining, QUERY_TILE - start % QUERY_TILE)
    if count <= budget:
        return count
    return budget if is_first else 0
