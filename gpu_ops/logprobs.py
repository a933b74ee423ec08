# SPDX-License-Identifier: Apache-2.0
"""Logarithms of the probabilities that a model itself gives: of raw logits, before any parameter changed them."""

import torch
from torch import Tensor


def token_logprobs(logits: Tensor, row: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """logits float32 [rows, vocabulary]; entry e asks for `token[e]` in row `row[e]`, both int64 [entries]. Returns
    float32 logprobs and int64 ranks [entries].

    The most likely token has rank 1; equal logits rank by id, the lowest first.
    """
    logprobs = torch.log_softmax(logits, dim=-1)[row, token]
    ids = torch.arange(logits.shape[1], device=logits.device)
    theirs, own = logits[row], logits[row, token].unsqueeze(1)
    before = (theirs > own) | ((theirs == own) & (ids < token.unsqueeze(1)))
    return logprobs, before.sum(-1) + 1


def most_likely(logits: Tensor, count: int) -> Tensor:
    """The ids of the `count` highest logits of each row, the highest first, equal ones by rising id."""
    values, tokens = logits.topk(min(count + 1, logits.shape[1]))
    tied = (values[:, 1:] == values[:, :-1]).any(-1)
    if bool(tied.any()):
        # topk puts equal values anywhere, so where there are some each value gets its id as a second key.
        tokens[tied] = keys(logits[tied]).topk(tokens.shape[1]).indices
    return tokens[:, :count]


def keys(logits: Tensor) -> Tensor:
    """int64 with the order of the logits, and of equal ones the lowest id highest."""
    bits = (logits + 0.0).view(torch.int32)  # the sum makes -0.0 the 0.0 that it equals
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.long() << 32) - torch.arange(logits.shape[1], device=logits.device)
