# SPDX-License-Identifier: Apache-2.0
"""Drafts: tokens that may come next, looked up in the sequence itself (prompt lookup, Saxena 2023).

The tokens that followed an earlier occurrence of the last few tokens are likely to follow again. A draft is a function
of the tokens alone, so that it is the same after a handoff and on replay. It never changes the output: every token is
drawn as if there had been no draft, and a draft that differs from the drawn token is dropped.
"""

# The number of last tokens that are compared at most, and of places that are compared, the latest first.
LONGEST, MOST_PLACES = 3, 64


class PromptLookup:
    """An index of one sequence's tokens. `follow` takes the tokens that came since, `propose` guesses."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.places: dict[int, list[int]] = {}
        # The number of last tokens that matched at the last proposal.
        self.matching = 0

    def follow(self, prompt: list[int], output: list[int]) -> None:
        """Take the sequence's current tokens; those known before must be the same."""
        known = len(self.tokens)
        for token in prompt[known:] if known < len(prompt) else ():
            self.add(token)
        for token in output[max(0, known - len(prompt)) :]:
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
        followed = self.tokens[place + 1 : place + 1 + count]
        return tuple(followed[at % len(followed)] for at in range(count))

    def best_place(self) -> int | None:
        """The earlier place at which most of the last tokens match, at most LONGEST; of equal places the latest. Set
        `matching`."""
        best, longest = None, 0
        for place in reversed(self.places[self.tokens[-1]][-1 - MOST_PLACES : -1]):
            if (matched := self.matched(place)) > longest:
                best, longest = place, matched
            if longest == LONGEST:
                break
        self.matching = longest
        return best

    def matched(self, place: int) -> int:
        last, count = len(self.tokens) - 1, 1
        while count < LONGEST and count <= place and self.tokens[place - count] == self.tokens[last - count]:
            count += 1
        return count
