# SPDX-License-Identifier: Apache-2.0
"""Penalties against transformers and against OpenAI's formula; masks and biases touch their entries only."""

import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from pontil.gpu_ops.draws.logit_edits import add_bias, allow_bits, allow_only, forbid, penalize

ROWS, VOCABULARY = 3, 50


def logits() -> torch.Tensor:
    return torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(0))


def test_repetition_penalty_is_that_of_transformers() -> None:
    tokens = torch.tensor([[4, 4, 9, 30], [0, 49, 7, 7], [1, 2, 3, 4]])
    ours = logits()
    pairs = [(row, token) for row in range(ROWS) for token in dict.fromkeys(tokens[row].tolist())]
    row, token = torch.tensor(pairs).unbind(-1)
    penalize(ours, row, token, torch.zeros(len(pairs)), torch.tensor([[1.3, 0.0, 0.0]] * ROWS))
    theirs = transformers.RepetitionPenaltyLogitsProcessor(1.3)(tokens, logits())
    assert torch.equal(ours, theirs)


def test_presence_and_frequency_count_generated_tokens_only() -> None:
    ours = logits()
    row, token, count = torch.tensor([0, 0, 0, 2]), torch.tensor([5, 6, 7, 5]), torch.tensor([0.0, 1.0, 3.0, 2.0])
    penalize(ours, row, token, count, torch.tensor([[1.0, 0.5, 0.25]] * 2 + [[1.0, -2.0, 0.0]]))
    change = torch.zeros(ROWS, VOCABULARY)
    change[0, 6], change[0, 7], change[2, 5] = -0.75, -1.25, 2.0
    torch.testing.assert_close(ours, logits() + change)


def test_bias_and_bans_touch_their_entries_only() -> None:
    ours = logits()
    add_bias(ours, torch.tensor([0, 2]), torch.tensor([3, 3]), torch.tensor([-100.0, 1.5]))
    forbid(ours, torch.tensor([1, 1]), torch.tensor([0, 49]))
    expected = logits()
    expected[0, 3] -= 100.0
    expected[2, 3] += 1.5
    expected[1, [0, 49]] = -torch.inf
    assert torch.equal(ours, expected)


def test_what_is_allowed_keeps_its_logits() -> None:
    ours = logits()
    allow_only(ours, torch.tensor([1, 1]), torch.tensor([8, 2]))
    assert torch.equal(ours[[0, 2]], logits()[[0, 2]])
    assert ours[1].isfinite().nonzero().squeeze(1).tolist() == [2, 8]
    assert torch.equal(ours[1, [2, 8]], logits()[1, [2, 8]])


@settings(deadline=None)
@given(st.data(), st.integers(1, 100), st.integers(1, 5))
def test_bits_forbid_what_they_do_not_name(data: st.DataObject, vocabulary: int, rows: int) -> None:
    """Any vocabulary size relative to a word's bits, rows in any order, and spare words."""
    row = data.draw(st.lists(st.integers(0, rows - 1), unique=True, min_size=1))
    width = -(-vocabulary // 32) + data.draw(st.integers(0, 1))
    kept = [data.draw(st.sets(st.integers(0, 32 * width - 1))) for _ in row]
    masks = b"".join(sum(1 << one for one in ids).to_bytes(4 * width, "little") for ids in kept)
    before = torch.randn(rows, vocabulary)
    after = before.clone()
    allow_bits(after, torch.tensor(row), torch.frombuffer(bytearray(masks), dtype=torch.int32).view(len(row), width))
    for place in range(rows):
        ids = kept[row.index(place)] if place in row else set(range(vocabulary))
        expected = [before[place, one].item() if one in ids else -torch.inf for one in range(vocabulary)]
        assert after[place].tolist() == expected
