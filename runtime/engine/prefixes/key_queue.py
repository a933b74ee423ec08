# SPDX-License-Identifier: Apache-2.0
"""The queue of sequences whose prompts' keys are to be made, some of them in each step."""

from bisect import insort
from collections import deque
from collections.abc import Callable
from operator import attrgetter

from pontil.runtime.engine.sequences.prompt_keys import PromptKeys
from pontil.runtime.engine.sequences.sequence import Sequence

# Keys of a prompt that are made as soon as it comes, and those that are made before another's turn.
AT_ONCE, PORTION = 32, 128
# Keys for each second of a step: making them takes a few percent of it, and a few milliseconds at most.
KEYS_PER_SECOND, MOST = 30_000, 2048


class KeyQueue:
    """Sequences whose prompts' keys are being made, a few in each step: it is not held up by any of them. Long ones
    take turns. Every other turn is for those that have had none, in scheduling order: a long prompt holds up no short
    one, nor any number of short ones a long one."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.made_at = clock, clock()
        self.new: list[Sequence] = []
        self.begun: deque[Sequence] = deque()
        self.new_is_next = True

    def __len__(self) -> int:
        return len(self.new) + len(self.begun)

    def take(self, sequence: Sequence, keys: PromptKeys) -> bool:
        """Make the keys of a sequence at once if they are few, else queue it. Return whether they are made."""
        if keys.left:
            keys.make(AT_ONCE)
        if keys.left:
            self.add(sequence)
        return not keys.left

    def add(self, sequence: Sequence) -> None:
        insort(self.new, sequence, key=attrgetter("order"))

    def remove(self, sequence: Sequence) -> None:
        if sequence in self.new:
            self.new.remove(sequence)
        elif sequence in self.begun:
            self.begun.remove(sequence)

    def make(self, in_step: bool) -> list[Sequence]:
        """Make some keys, as many as the time since the last call allows; unless they hold up a step, those of one
        sequence at least. Return the sequences that have them all now."""
        before, self.made_at = self.made_at, self.clock()
        budget = max(PORTION, min(MOST, int((self.made_at - before) * KEYS_PER_SECOND)))
        ended = list[Sequence]()
        while len(self) and (budget > 0 or not (in_step or ended)):
            sequence = self.next()
            assert sequence.prefix.keys is not None
            budget -= sequence.prefix.keys.make(PORTION if in_step else sequence.prefix.keys.left)
            if sequence.prefix.keys.left:
                self.begun.append(sequence)
            else:
                ended.append(sequence)
        return ended

    def next(self) -> Sequence:
        is_new = bool(self.new) and (self.new_is_next or not self.begun)
        self.new_is_next = not is_new
        return self.new.pop(0) if is_new else self.begun.popleft()
