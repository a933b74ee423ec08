# SPDX-License-Identifier: Apache-2.0
"""The state from which one sequence's next tokens are guessed.

The tokens that followed an earlier occurrence of the last few tokens are likely to follow again (prompt lookup, Saxena
2023). A draft is a function of the tokens alone, so that it is the same after a handoff and on replay. It never changes
the output: every token is drawn as if there had been no draft, and a draft that differs from the drawn token is
dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# The number of last tokens that are compared at most, and of places that are compared, the latest first.
LONGEST, MOST_PLACES = 3, 64
# The most states that are kept of a sequence: a draft model reads no more of a long text.
KEPT_STATES = 128


class TargetStates:
    """The final hidden states, float32 [hidden_size] each, of neighbouring positions from `start` to before `end`."""

    def __init__(self, start: int, rows: list[Tensor]) -> None:
        self.start, self.rows = start, rows

    @property
    def end(self) -> int:
        return self.start + len(self.rows)

    def at(self, position: int) -> Tensor:
        return self.rows[position - self.start]

    def record(self, start: int, rows: list[Tensor]) -> None:
        """Take the states of the positions from `start` on. What was known of these and of later ones is replaced; so
        are earlier ones where a gap would be left."""
        if not self.start <= start <= self.end:
            self.start, self.rows = start, []
        self.cut(start)
        self.rows += rows
        excess = max(0, len(self.rows) - KEPT_STATES)
        del self.rows[:excess]
        self.start += excess

    def cut(self, end: int) -> None:
        """Drop the states of positions from `end` on: those of rejected drafts."""
        del self.rows[max(0, end - self.start) :]

    def copy(self) -> TargetStates:
        return TargetStates(self.start, list(self.rows))


class PromptLookup:
    """An index of one sequence's tokens. `follow` takes the tokens that came since, `propose` guesses."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.places: dict[int, list[int]] = {}
        # The number of last tokens that matched at the last proposal.
        self.matching = 0

    def follow(self, prompt: list[int], output: list[int]) -> None:
        """Take the sequence's current tokens; those known before must be the same."""
        length = len(self.tokens)
        for token in prompt[length:] if length < len(prompt) else ():
            self.add(token)
        for token in output[max(0, length - len(prompt)) :]:
            self.add(token)

    def add(self, token: int) -> None:
        self.places.setdefault(token, []).append(len(self.tokens))
        self.tokens.append(token)

    def propose(self, count: int) -> tuple[int, ...]:
        """Propose `count` tokens, or none where the last token is new. A proposal that reaches the end of the sequence
        repeats from the matched place."""
        place = self.best_place()
        if place is None:
            return ()
        continuation = self.tokens[place + 1 : place + 1 + count]
        return tuple(continuation[at % len(continuation)] for at in range(count))

    def best_place(self) -> int | None:
        """The earlier place at which most of the last tokens match, at most LONGEST; of equal places the latest. Set
        `matching`."""
        best, longest = None, 0
        for place in reversed(self.places[self.tokens[-1]][-1 - MOST_PLACES : -1]):
            if (match_length := self.matched(place)) > longest:
                best, longest = place, match_length
            if longest == LONGEST:
                break
        self.matching = longest
        return best

    def matched(self, place: int) -> int:
        last, count = len(self.tokens) - 1, 1
        while count < LONGEST and count <= place and self.tokens[place - count] == self.tokens[last - count]:
            count += 1
        return count


@dataclass(slots=True)
class DraftState:
    """The draft that came with a handoff, `handed`, which is used once; an index of what stood before, built when first
    needed; and the target's states of the newest positions, where a draft layer reads them. Before the prompt
    stand `skipped` tokens that are not computed in this engine; only a draft model leaves out any."""

    handed: tuple[int, ...] = ()
    lookup: PromptLookup | None = None
    target_states: TargetStates | None = None
    skipped: int = 0

    def guess(self, prompt: list[int], output: list[int], count: int, is_new: bool) -> tuple[int, ...]:
        """Return tokens that a handoff brought, if none was generated here yet (`is_new`), or that followed an earlier
        occurrence of the last ones."""
        handed_tokens, self.handed = self.handed[:count], ()
        if handed_tokens and is_new:
            return handed_tokens
        if self.lookup is None:
            self.lookup = PromptLookup()
        self.lookup.follow(prompt, output)
        return self.lookup.propose(count)

    def record(self, first: int, states: list[Tensor]) -> None:
        """Record the target's states of positions from `first` on, each float32 [hidden_size]."""
        if self.target_states is None:
            self.target_states = TargetStates(first, [])
        self.target_states.record(first, states)

    def fork(self) -> DraftState:
        return DraftState(target_states=None if self.target_states is None else self.target_states.copy())
