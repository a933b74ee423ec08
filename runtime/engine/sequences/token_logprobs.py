# SPDX-License-Identifier: Apache-2.0
"""Log probabilities of one token and of those that stand beside it in its place, and the logits it was drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Entry = tuple[int, float, int]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """`entries` are (token id, logprob, rank from 1): first the token itself, then the k most likely ones or those that
    were named, by rank, which may repeat it; none where none were asked for. Logprobs are natural and of the raw
    distribution, before temperature, penalties and masks. `top_logits` are the highest logits of that, as
    `runtime/receipts/chain.py` commits to them, where they were asked for."""

    entries: tuple[Entry, ...] = ()
    top_logits: bytes = b""

    @classmethod
    def from_wire(cls, entries: Sequence[Sequence[float]], top_logits: bytes = b"") -> TokenLogprobs:
        """Raises ValueError for entries that are not three numbers each."""
        return cls(tuple((int(token), float(logprob), int(rank)) for token, logprob, rank in entries), top_logits)

    def to_wire(self) -> list[list[int | float]]:
        return [list(entry) for entry in self.entries]
