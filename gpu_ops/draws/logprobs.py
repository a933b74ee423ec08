# SPDX-License-Identifier: Apache-2.0
"""Log probabilities of the model itself: of raw logits, before any parameter changed them."""

import torch
from torch import Tensor

# Entries whose whole rows are compared at a time: a bound on the memory that ranks take.
RANKED_TOGETHER = 32


def token_logprobs(logits: Tensor, row: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """Return float32 logprobs and int64 ranks [entries] for logits float32 [rows, vocabulary]; entry e asks for
    `token[e]` in row `row[e]`, both int64 [entries].

    The most likely token has rank 1; equal logits rank by id, the lowest first.
    """
    logprobs = torch.log_softmax(logits, dim=-1)[row, token]
    parts = zip(row.split(RANKED_TOGETHER), token.split(RANKED_TOGETHER), strict=True)
    return logprobs, torch.cat([ranks_of(logits, *part) for part in parts])


def ranks_of(logits: Tensor, row: Tensor, token: Tensor) -> Tensor:
    ids = torch.arange(logits.shape[1], device=logits.device)
    theirs, token_logits = logits[row], logits[row, token].unsqueeze(1)
    before = (theirs > token_logits) | ((theirs == token_logits) & (ids < token.unsqueeze(1)))
    return before.sum(-1) + 1


def most_likely(logits: Tensor, count: int) -> Tensor:
    """The ids of the `count` highest logits of each row, the highest first, equal ones by rising id."""
    if logits.device.type != "cpu":
        return keys(logits).topk(min(count, logits.shape[1])).indices
    values, tokens = logits.topk(min(count + 1, logits.shape[1]))
    tied_rows = (values[:, 1:] == values[:, :-1]).any(-1)
    if bool(tied_rows.any()):
        # topk puts equal values in any order, so on a tie each value gets its id as a second key.
        tokens[tied_rows] = keys(logits[tied_rows]).topk(tokens.shape[1]).indices
    return tokens[:, :count]


def keys(logits: Tensor) -> Tensor:
    """int64 keys in the order of the logits; of equal logits the lowest id is highest."""
    bits = (logits + 0.0).view(torch.int32)  # the sum turns -0.0 into 0.0, which equals it
    ordered_bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered_bits.long() << 32) - torch.arange(logits.shape[1], device=logits.device)
