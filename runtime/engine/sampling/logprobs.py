# SPDX-License-Identifier: Apache-2.0
"""Log probabilities of a token and of the most likely tokens in its place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor

from pontil.gpu_ops.draws.logprobs import most_likely, token_logprobs
from pontil.runtime.engine.sequences.token_logprobs import Entry, TokenLogprobs


def logprobs_of(logits: Tensor, row: Tensor, token: Tensor, counts: Sequence[int]) -> list[TokenLogprobs]:
    """For each entry, the logprobs of token `token[e]` in row `row[e]` of float32 logits [rows, vocabulary], and of the
    `counts[e]` most likely ones of that row."""
    logprobs, ranks = token_logprobs(logits, row, token)
    best = most_likely(logits, max(counts))
    rows = torch.arange(len(logits), device=logits.device).repeat_interleave(best.shape[1])
    best_logprobs = torch.log_softmax(logits, dim=-1)[rows, best.flatten()].view(best.shape)
    first = zip(token.tolist(), logprobs.tolist(), ranks.tolist(), strict=True)
    tables = [ranked(*row) for row in zip(best.tolist(), best_logprobs.tolist(), strict=True)]
    return [
        TokenLogprobs((entry, *tables[place][:count]))
        for entry, place, count in zip(first, row.tolist(), counts, strict=True)
    ]


def logprobs_of_named(
    logits: Tensor, row: Tensor, token: Tensor, named: Sequence[tuple[int, ...]]
) -> list[TokenLogprobs]:
    """The same, with the tokens `named[e]` in place of the most likely ones."""
    pairs = [
        (place, token_id)
        for place, first_id, ids in zip(row.tolist(), token.tolist(), named, strict=True)
        for token_id in (first_id, *ids)
    ]
    places, tokens = (torch.tensor(column, device=logits.device) for column in zip(*pairs, strict=True))
    logprobs, ranks = token_logprobs(logits, places, tokens)
    entries = iter(zip(tokens.tolist(), logprobs.tolist(), ranks.tolist(), strict=True))
    return [
        TokenLogprobs((next(entries), *sorted(islice(entries, len(ids)), key=lambda entry: entry[2]))) for ids in named
    ]


def ranked(tokens: list[int], logprobs: list[float]) -> list[Entry]:
    """Entries of tokens that are sorted by rank."""
    return [(token, logprob, rank) for rank, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True), 1)]
