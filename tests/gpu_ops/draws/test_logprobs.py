# SPDX-License-Identifier: Apache-2.0
"""Logprobs and ranks, with equal logits in the order of their ids."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pontil.gpu_ops.draws.logprobs import most_likely, token_logprobs


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 30, 501]), st.integers(0, 25), st.booleans())
def test_order_and_ranks(seed: int, vocabulary: int, count: int, coarse: bool) -> None:
    logits = torch.randn(4, vocabulary, generator=torch.Generator().manual_seed(seed))
    logits = logits.round() if coarse else logits  # rounding also makes zeros of both signs
    order = [sorted(range(vocabulary), key=lambda token: (-row[token], token)) for row in logits.tolist()]
    assert most_likely(logits, count).tolist() == [row[:count] for row in order]
    places = torch.randint(0, vocabulary, (6,), generator=torch.Generator().manual_seed(seed))
    rows = torch.tensor([0, 1, 1, 2, 3, 0])
    tokens = torch.tensor([order[row][place] for row, place in zip(rows.tolist(), places.tolist(), strict=True)])
    logprobs, ranks = token_logprobs(logits, rows, tokens)
    assert torch.equal(ranks, places + 1)
    torch.testing.assert_close(logprobs, logits.double().log_softmax(-1).float()[rows, tokens])


def test_a_row_depends_on_itself_alone() -> None:
    logits = torch.randn(32, 4099, generator=torch.Generator().manual_seed(1)) * 4
    tokens = torch.arange(32) * 97
    together, _ = token_logprobs(logits, torch.arange(32), tokens)
    for row in range(32):
        alone, _ = token_logprobs(logits[row : row + 1], torch.tensor([0]), tokens[row : row + 1])
        assert torch.equal(alone, together[row : row + 1])
