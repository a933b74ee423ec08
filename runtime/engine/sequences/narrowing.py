# SPDX-License-Identifier: Apache-2.0
"""The limits that one sequence's parameters add to the masks of its grammar."""

from collections.abc import Iterable

import torch
from torch import Tensor

from pontil.runtime.sampling_params import SamplingParams


class Narrowing:
    """Limits as words int32 [words], as `allow_bits` takes them. `stops` are the ids that end the sequence; those of
    them in `ends` end it where the grammar's text may end."""

    def __init__(self, params: SamplingParams, stops: frozenset[int], ends: frozenset[int], width: int) -> None:
        self.min_tokens = params.min_tokens
        allowed = params.allowed_token_ids
        self.always = (words_of(allowed, width) if allowed else ~words_of((), width)) & ~words_of(
            params.bad_token_ids, width
        )
        self.early = ~words_of(stops, width)
        self.late = ~words_of(ends if params.ignore_eos else (), width)

    def apply(self, words: Tensor, generated: int) -> None:
        """Narrow the mask of the next token [words], in place. An end is put off only if another token is allowed."""
        words &= self.always
        going_on = words & (self.early if generated < self.min_tokens else self.late)
        if bool(going_on.any()):
            words.copy_(going_on)


def narrows(params: SamplingParams) -> bool:
    """Return whether these parameters change a grammar's masks."""
    return bool(params.allowed_token_ids or params.bad_token_ids or params.min_tokens or params.ignore_eos)


def words_of(ids: Iterable[int], width: int) -> Tensor:
    """Words int32 [width] in which the bits of these ids are set; ids beyond the width are ignored."""
    bits = bytearray(4 * width)
    for number in ids:
        if number < 32 * width:
            bits[number >> 3] |= 1 << (number & 7)
    return torch.frombuffer(bits, dtype=torch.int32)
