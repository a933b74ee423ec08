# SPDX-License-Identifier: Apache-2.0
"""Validation of a frame's logprobs: the shape that a worker promised, and numbers that JSON can represent."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pontil.runtime.receipts.chain import width
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.wire.messages import Logprobs, Tokens

Entries = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class ShownLogits:
    """The logits of a frame's ids, as far as it was asked for them: `logprobs`, and the `top_logits` of all."""

    logprobs: Logprobs = field(default_factory=list)
    top_logits: bytes = b""

    @classmethod
    def of(cls, frame: Tokens) -> "ShownLogits":
        return cls(frame.logprobs or [], frame.top_logits or b"")

    def of_last(self, new: int, count: int, most: int) -> bytes:
        """Return the highest logits, `most` of each, of the first `count` of the frame's last ids, which are `new`."""
        each = width(most)
        return self.top_logits[len(self.top_logits) - new * each :][: count * each]


NO_LOGITS = ShownLogits()


def fit(frame: Tokens, prompt: Sequence[int], params: SamplingParams) -> bool:
    """Logprobs are there exactly where they were asked for, and can be shown; so are the highest logits, which
    a worker of an earlier version does not state."""
    if len(frame.top_logits or b"") not in (0, len(frame.ids) * width(params.top_logits)):
        return False
    return fit_the_ids(frame.logprobs, frame.ids, params.logprobs is not None) and fit_the_prompt(
        frame.prompt_logprobs, prompt, params.prompt_logprobs is not None
    )


def fit_the_ids(logprobs: Logprobs | None, ids: Sequence[int], wants_logprobs: bool) -> bool:
    """Return whether there is one item for each id, that id's own entry first; or none at all where they were not asked
    for."""
    entries = logprobs or []
    if not wants_logprobs:
        return not entries
    pairs = zip(entries, ids, strict=False)
    return len(entries) == len(ids) and all(are_entries(some) and some[0][0] == token for some, token in pairs)


def fit_the_prompt(logprobs: Logprobs | None, prompt: Sequence[int], wants_logprobs: bool) -> bool:
    """Return whether this frame has none, or one item for each prompt token, of which only the first is empty."""
    if not logprobs:
        return True
    return wants_logprobs and len(logprobs) == len(prompt) and not logprobs[0] and all(map(are_entries, logprobs[1:]))


def are_entries(some: Entries) -> bool:
    """Return whether this is at least one [token id, logprob, rank from 1]. Minus infinity is a valid logprob; NaN and
    infinity are not."""
    return bool(some) and all(
        len(entry) == 3 and is_whole(entry[0], 0) and entry[1] < math.inf and is_whole(entry[2], 1) for entry in some
    )


def is_whole(number: float, lowest: int) -> bool:
    return isinstance(number, int) and number >= lowest
