# SPDX-License-Identifier: Apache-2.0
"""The interface by which the engine keeps one sequence to its grammar."""

from collections import abc
from typing import Protocol


class Guide(Protocol):
    """Follows the output of one sequence. Its state is a function of the grammar and the tokens, so that a new one may
    replace it anywhere: after a fork, a handoff or on replay.

    `ends` are the ids with which the grammar's text may end. `failure` gives the reason why the last mask is empty,
    where that is the grammar's own fault. A guide may know the budget of its sequence, and end the text before
    that is used up.
    """

    ends: frozenset[int]
    failure: str | None

    def masks(self, output: list[int], drafts: abc.Sequence[int] = ()) -> list[bytes]:
        """Masks of the token after the output, and after each of the drafts: bit i % 8 of byte i // 8 is set if id i is
        allowed, the `ends` among them where the text may end. All masks of an engine are equally long, a multiple of
        four bytes with a bit for each logit. The mask after a forbidden draft is empty."""

    def is_cut(self, count: int) -> bool:
        """Return whether an output of so many tokens, of which the last one ended it, was ended by its budget."""

    def fitting(self, output: list[int], drafts: abc.Sequence[int]) -> int:
        """The number of drafts that the grammar lets follow the output."""
