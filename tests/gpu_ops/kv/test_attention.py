# SPDX-License-Identifier: Apache-2.0
"""Paged attention against plain attention, with windows and without; a query's bits do not depend on the other rows."""

from dataclasses import dataclass

import pytest
import torch
from effort import by_default
from torch import Tensor

from pontil.gpu_ops.kv.attention import (
    KEY_CHUNK,
    KEY_STRIP,
    MOST_HEADS,
    GeneratedAttention,
    PromptAttention,
    PromptSpan,
)
from pontil.gpu_ops.kv.cells import decode, encode
from pontil.gpu_ops.kv.sequence_attention import attend_within
from pontil.gpu_ops.parameters.attention import LayerAttention
from pontil.gpu_ops.parameters.cells import LARGEST

BLOCK = 16
KV_HEADS, GROUP = 2, 3
LENGTH = 700
WINDOWS = by_default({None, 1, 65, 300}, (None, 1, 2, 63, 64, 65, 66, 256, 300, 699, 700, 5000))
SCALE = 0.2


@dataclass(frozen=True)
class AttentionText:
    """Queries, keys and values of a whole text, and a pool whose blocks hold the keys and values in shuffled order."""

    q: Tensor
    k: Tensor
    v: Tensor
    pool: Tensor
    blocks: list[int]

    def stored_in(self, cells: torch.dtype) -> "AttentionText":
        """The same over a pool of other cells, whose slots without a position hold garbage too."""
        return AttentionText(self.q, self.k, self.v, encode(self.pool, cells), self.blocks)

    def rounded_to(self, cells: torch.dtype) -> "AttentionText":
        """The same with the keys and values that such cells hold."""
        k, v = (decode(encode(one, cells)) for one in (self.k, self.v))
        return AttentionText(self.q, k, v, self.pool, self.blocks)

    @property
    def dim(self) -> int:
        return self.q.shape[-1]


def make_text(dim: int) -> AttentionText:
    generator = torch.Generator().manual_seed(dim)
    q = torch.randn(LENGTH, KV_HEADS * GROUP, dim, generator=generator)
    k, v = torch.randn(2, LENGTH, KV_HEADS, dim, generator=generator)
    count = -(-LENGTH // BLOCK)
    # Block 0 and slots without a position hold garbage, as in a pool that was used before.
    pool = torch.randn(count + 5, 1, 2, KV_HEADS, BLOCK, dim, generator=generator) * 9
    blocks = (torch.randperm(count + 4, generator=generator)[:count] + 1).tolist()
    for position in range(LENGTH):
        pool[blocks[position // BLOCK], 0, :, :, position % BLOCK] = torch.stack((k[position], v[position]))
    return AttentionText(q, k, v, pool, blocks)


# The other sizes of heads are computed with every window in long tests.
@pytest.fixture(scope="module", params=[64, *(pytest.param(dim, marks=pytest.mark.long) for dim in (96, 128)), 256])
def text(request: pytest.FixtureRequest) -> AttentionText:
    return make_text(request.param)


def plain(text: AttentionText, window: int | None) -> Tensor:
    """Plain attention, [LENGTH, heads, dim] in float64."""
    keys, values = (one.double().repeat_interleave(GROUP, dim=1) for one in (text.k, text.v))
    scores = torch.einsum("qhd,khd->hqk", text.q.double(), keys) * SCALE
    distance = torch.arange(LENGTH).unsqueeze(1) - torch.arange(LENGTH)
    hidden = (distance < 0) | (distance >= (window or LENGTH))
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), values)


def table(blocks: list[int], positions: int, width: int) -> Tensor:
    chunks, per_chunk = -(-positions // width), width // BLOCK
    used = blocks[: chunks * per_chunk]
    return torch.tensor(used + [0] * (chunks * per_chunk - len(used))).view(chunks, per_chunk)


def places(text: AttentionText, positions: list[int]) -> tuple[Tensor, Tensor]:
    return torch.tensor([text.blocks[p // BLOCK] for p in positions]), torch.tensor([p % BLOCK for p in positions])


def prompt(text: AttentionText, start: int, count: int, window: int | None) -> Tensor:
    positions = list(range(start, start + count))
    spans = [PromptSpan(0, start, count, table(text.blocks, start + count, KEY_CHUNK))]
    attend = PromptAttention(text.pool, *places(text, positions), spans)
    return attend(LayerAttention(0, SCALE, window), text.q[positions], text.k[positions], text.v[positions])


def generated(text: AttentionText, positions: list[int], window: int | None) -> Tensor:
    tables = torch.stack([table(text.blocks, max(positions) + 1, KEY_STRIP) for _ in positions])
    attend = GeneratedAttention(text.pool, *places(text, positions), tables, torch.tensor(positions) + 1)
    return attend(LayerAttention(0, SCALE, window), text.q[positions], text.k[positions], text.v[positions])


@pytest.mark.parametrize("window", WINDOWS)
def test_prompts_in_any_cutting(text: AttentionText, window: int | None) -> None:
    whole = prompt(text, 0, LENGTH, window)
    torch.testing.assert_close(whole.double(), plain(text, window), atol=2e-5, rtol=0)
    cuts = [0, 1, 63, 130, 256, 257, 600, LENGTH]
    parts = [prompt(text, start, end - start, window) for start, end in zip(cuts, cuts[1:], strict=False)]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("window", WINDOWS)
def test_generated_positions_in_any_company(text: AttentionText, window: int | None) -> None:
    positions = [0, 1, 62, 63, 64, 65, 127, 128, 300, 511, 512, 640, 699]
    together = generated(text, positions, window)
    torch.testing.assert_close(together.double(), plain(text, window)[positions], atol=2e-5, rtol=0)
    assert torch.equal(torch.cat([generated(text, [one], window) for one in positions]), together)


def test_layers_of_one_tile_may_have_different_windows() -> None:
    text, positions = make_text(64), [5, 400]
    tables = torch.stack([table(text.blocks, 401, KEY_STRIP) for _ in positions])
    attend = GeneratedAttention(text.pool, *places(text, positions), tables, torch.tensor(positions) + 1)
    for window in (None, 70, None, 9, 70):
        rows = attend(LayerAttention(0, SCALE, window), text.q[positions], text.k[positions], text.v[positions])
        assert torch.equal(rows, generated(text, positions, window))


@pytest.mark.parametrize("cells", LARGEST, ids=str)
def test_cells_of_8_bits_are_read_as_they_are_stored(cells: torch.dtype) -> None:
    """Also by the rows that store them: a prompt has the same bits whole, cut, and position by position."""
    text, window, positions = make_text(64).stored_in(cells), 300, [0, 63, 64, 300, 699]
    expected, whole = plain(text.rounded_to(cells), window), prompt(text, 0, LENGTH, window)
    torch.testing.assert_close(whole.double(), expected, atol=2e-5, rtol=0)
    fresh = AttentionText(text.q, text.k, text.v, torch.zeros_like(text.pool), text.blocks)
    parts = [prompt(fresh, start, end - start, window) for start, end in ((0, 130), (130, 257), (257, LENGTH))]
    assert torch.equal(torch.cat(parts), whole)
    together = generated(text, positions, window)
    torch.testing.assert_close(together.double(), expected[positions], atol=2e-5, rtol=0)
    assert torch.equal(torch.cat([generated(text, [one], window) for one in positions]), together)


def test_many_heads_of_one_kv_head_and_a_single_plane() -> None:
    """Latent attention has this form. There are more heads than are computed at a time, and sinks."""
    generator = torch.Generator().manual_seed(8)
    heads, dim, length = MOST_HEADS + 4, 40, 150
    q, k = (torch.randn(length, count, dim, generator=generator) for count in (heads, 1))
    sinks = torch.randn(heads, generator=generator)
    blocks = list(range(1, -(-length // BLOCK) + 1))
    pool = torch.randn(len(blocks) + 1, 1, 1, 1, BLOCK, dim, generator=generator) * 9
    positions = torch.arange(length)
    places = (torch.tensor(blocks)[positions // BLOCK], positions % BLOCK)
    attend = PromptAttention(pool, *places, [PromptSpan(0, 0, length, table(blocks, length, KEY_CHUNK))])
    layer = LayerAttention(0, SCALE, sinks=sinks)
    made = attend(layer, q, k, None)
    expected = attend_within(q, k, k, scale=SCALE, causal=True, sinks=sinks)
    torch.testing.assert_close(made, expected, atol=2e-5, rtol=0)
    last = slice(length - 1, length)
    one = GeneratedAttention(
        pool, places[0][last], places[1][last], table(blocks, length, KEY_STRIP).unsqueeze(0), torch.tensor([length])
    )
    alone = one(layer, q[last], k[last], None)
    torch.testing.assert_close(alone, expected[last], atol=2e-5, rtol=0)
