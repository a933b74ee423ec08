# SPDX-License-Identifier: Apache-2.0
"""Edits of logits that requests ask for before a token is drawn, in place and without touching other entries.

An edit is a list of entries (row, id), each at most once: `row` and `id` are int64 [entries], `logits` float32 [rows,
vocabulary]. The work is proportional to the entries, not to the vocabulary, except for masks of whole rows, which come
as bits.
"""

import torch
from torch import Tensor

# The biases of eight logits for each value of a byte: 0 for a set bit, minus infinity for a clear one.
EIGHT_BIASES = torch.where((torch.arange(256).unsqueeze(1) >> torch.arange(8)) & 1 == 1, 0.0, -torch.inf)
# Smaller repetition penalties count as this: a logit divided by it is above all others, and still finite.
LEAST_REPETITION_PENALTY = 1e-6
# Logits per piece, chosen so that a piece's intermediate results stay in the processor's cache.
PIECE = 1 << 17


def penalize(logits: Tensor, row: Tensor, token: Tensor, count: Tensor, factors: Tensor) -> None:
    """Apply the penalties of tokens that occurred. `count` float32 [entries]: times each was generated, 0 for one that
    is in the prompt only. `factors` float32 [rows, 3]: repetition, presence and frequency penalty of each row.

    Repetition divides positive logits and multiplies negative ones (Keskar et al., 2019), for tokens of the prompt and
    of the output; presence and frequency are subtracted, once and per occurrence, for generated tokens only (OpenAI).
    """
    repetition, presence, frequency = factors[row].unbind(-1)
    repetition = repetition.clamp(min=LEAST_REPETITION_PENALTY)
    value = logits[row, token]
    value = torch.where(value > 0, value / repetition, value * repetition)
    logits[row, token] = value - frequency * count - presence * (count > 0)


def add_bias(logits: Tensor, row: Tensor, token: Tensor, bias: Tensor) -> None:
    logits.index_put_((row, token), bias, accumulate=True)


def forbid(logits: Tensor, row: Tensor, token: Tensor) -> None:
    logits[row, token] = -torch.inf


def allow_only(logits: Tensor, row: Tensor, token: Tensor) -> None:
    """Forbid all other ids in the rows that have an entry."""
    allowed_logits = logits[row, token]
    if logits.device.type == "cpu":
        logits[row.unique()] = -torch.inf
    else:
        # The number of distinct rows is not known here.
        row_mask = torch.zeros(len(logits), 1, dtype=torch.bool, device=logits.device).index_fill_(0, row, True)
        logits.masked_fill_(row_mask, -torch.inf)
    logits[row, token] = allowed_logits


def allow_bits(logits: Tensor, row: Tensor, words: Tensor) -> None:
    """Forbid, in whole rows, every id whose bit is not set. `row` int64 [masks], each row at most once; `words` int32
    [masks, at least vocabulary / 32]: bit i % 32 of word i // 32 stands for id i."""
    vocabulary = logits.shape[1]
    if logits.device.type != "cpu":
        ids = torch.arange(vocabulary, device=logits.device)
        forbidden = (words.index_select(1, ids // 32) >> (ids % 32).int()) & 1 == 0
        logits.index_add_(0, row, torch.zeros_like(forbidden, dtype=torch.float32).masked_fill_(forbidden, -torch.inf))
        return
    step = max(1, PIECE // vocabulary)
    # A word is four bytes, the lowest first, on every supported device.
    octets = words.view(torch.uint8)[:, : -(-vocabulary // 8)]
    for start in range(0, len(row), step):
        some = octets[start : start + step]
        bias = EIGHT_BIASES.index_select(0, some.flatten().int()).view(len(some), -1)
        logits.index_add_(0, row[start : start + step], bias[:, :vocabulary])
