# SPDX-License-Identifier: Apache-2.0
"""A guide whose allowed tokens are a function of the output, written in Python."""

from collections.abc import Callable, Sequence

from tiny import VOCAB

from pontil.runtime.engine.sequences.token_rules import Guide

Allowed = Callable[[list[int]], set[int]]
END = 1
MASK_BYTES = 4 * -(-VOCAB // 32)


class Rule(Guide):
    """Guide by a function: `allowed` returns the ids that may follow an output, END among them where it may end."""

    def __init__(self, allowed: Allowed, failure: str | None = None) -> None:
        self.allowed, self.failure = allowed, failure
        self.ends = frozenset({END})

    def masks(self, output: list[int], drafts: Sequence[int] = ()) -> list[bytes]:
        right = self.fitting(output, drafts)
        behind = [self.allowed([*output, *drafts[:count]]) for count in range(right + 1)]
        behind += [set()] * (len(drafts) - right)
        return [sum(1 << number for number in ids).to_bytes(MASK_BYTES, "little") for ids in behind]

    def is_cut(self, count: int) -> bool:
        return False

    def fitting(self, output: list[int], drafts: Sequence[int]) -> int:
        for count, token in enumerate(drafts):
            if token == END or token not in self.allowed([*output, *drafts[:count]]):
                return count
        return len(drafts)


def every_third(output: list[int]) -> set[int]:
    """Allow a third of the vocabulary, chosen by the whole output; ends in every seventh position only."""
    found = {token for token in range(2, VOCAB) if (token + sum(output) + len(output)) % 3 == 0}
    return found | {END} if len(output) % 7 == 6 else found
