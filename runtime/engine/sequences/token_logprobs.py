# SPDX-License-Identifier: Apache-2.0
"""Log probabilities of one token and of those that stand beside it in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Entry = tuple[int, float, int]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """`entries` are (token id, logprob, rank from 1): first the token itself, then the k most likely ones or those that
    were named, by rank, which may repeat it. Logprobs are natural and of the raw distribution, before temperature,
    penalties and masks."""

    entries: tuple[Entry, ...]

    @classmethod
    def from_wire(cls, entries: Sequence[Sequence[float]]) -> TokenLogprobs:
        """Raises ValueError for entries that are not three numbers each."""
        return cls(tuple((int(token), float(logprob), int(rank)) for token, logprob, rank in entries))

    def to_wire(self) -> list[list[int | float]]:
        return [list(entry) for entry in self.entries]
