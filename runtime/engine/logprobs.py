# SPDX-License-Identifier: Apache-2.0
"""How likely a token was, and what else was likely there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """`entries` are (token id, logprob, rank from 1): the token itself first, then the most likely ones."""

    entries: tuple[tuple[int, float, int], ...]

    @classmethod
    def from_wire(cls, entries: Sequence[Sequence[float]]) -> TokenLogprobs:
        """Raises ValueError for entries that are not three numbers each."""
        return cls(tuple((int(token), float(logprob), int(rank)) for token, logprob, rank in entries))

    def to_wire(self) -> list[list[int | float]]:
        return [list(entry) for entry in self.entries]
