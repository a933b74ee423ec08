# SPDX-License-Identifier: Apache-2.0
"""Allocations of the weights' arena are separate, aligned, and zero until they are written."""

import torch
from hypothesis import given
from hypothesis import strategies as some

from pontil.gpu_ops.kernels.weights.arena import CACHE_LINE, CHUNK, HUGE_PAGE, Arena

SIZES = some.one_of(some.integers(1, 5000), some.sampled_from([CHUNK // 8, CHUNK // 8 + 1, CHUNK // 4, CHUNK]))


@given(some.lists(SIZES, max_size=12))
def test_pieces_are_apart(sizes: list[int]) -> None:
    arena = Arena()
    pieces = [arena.take([size], torch.int32) for size in sizes]
    ends = sorted((piece.data_ptr(), piece.data_ptr() + 4 * len(piece)) for piece in pieces)
    assert all(end <= start for (_, end), (start, _) in zip(ends, ends[1:], strict=False))
    for number, piece in enumerate(pieces):
        assert piece.data_ptr() % CACHE_LINE == 0 and not piece[:10].any() and not piece[-10:].any()
        piece[:10] = piece[-10:] = number + 1
    assert all(bool((piece[-10:] == number + 1).all()) for number, piece in enumerate(pieces))


def test_neighbours_follow_each_other_from_the_start_of_a_huge_page() -> None:
    arena = Arena()
    first, second = arena.take([48, 16], torch.int32), arena.take([16], torch.int32)
    assert first.data_ptr() % HUGE_PAGE == 0 and second.data_ptr() == first.data_ptr() + 4 * 48 * 16


def test_a_piece_outlives_its_arena() -> None:
    piece = Arena().take([4], torch.int32).fill_(7)
    for _ in range(20):
        Arena().take([CHUNK // 8], torch.int32).fill_(1)
    assert piece.tolist() == [7] * 4
