# SPDX-License-Identifier: Apache-2.0
"""The record of where a sequence's tokens came from, and of their logprobs; and the tokens that come next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pontil.runtime.engine.sequences.token_logprobs import TokenLogprobs

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Known:
    """The first tokens of one choice, sampled elsewhere. The client has the first `delivered` of them; `logprobs` are
    those of the others, if requested. `draft` guesses the tokens that follow. `hidden` is the target's state of the
    prompt's last position, float32 [hidden_size]."""

    choice: int
    tokens: list[int]
    delivered: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    draft: tuple[int, ...] = ()
    hidden: Tensor | None = None


@dataclass(slots=True)
class OutputRecord:
    """The origins of an output: `received` tokens were sampled elsewhere, the first `delivered` of which the client has
    already, and `generated` here, counted from the shapes of their tensors. `logprobs` are those of the tokens that
    were not delivered, `prompt_logprobs` those of the prompt so far, if requested."""

    received: int = 0
    delivered: int = 0
    generated: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)

    @property
    def is_new(self) -> bool:
        """Return whether no token was generated here yet."""
        return self.generated == 0

    def receive(self, known: Known) -> None:
        self.received, self.delivered = len(known.tokens), known.delivered
        self.logprobs += known.logprobs

    def logprobs_from(self, index: int) -> list[TokenLogprobs]:
        """Return the logprobs of the output's tokens from `index` on, which were not delivered."""
        return self.logprobs[index - self.delivered :]


@dataclass(slots=True)
class DrawnAhead:
    """Tokens after an output that have been drawn in steps whose results are not here yet: `count` of them. The newest
    is at `place` among the results of the last such step; without a place the next row waits for it."""

    count: int = 0
    place: int | None = None

    def clear(self) -> None:
        self.count, self.place = 0, None
