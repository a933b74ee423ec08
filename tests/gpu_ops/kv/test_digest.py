# SPDX-License-Identifier: Apache-2.0
"""A block's digest against arithmetic without limits, and against the ways in which memory gets corrupted."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pontil.gpu_ops.kv.digest import TOGETHER, block_digests, digest_weights

WORDS = 48
WEIGHTS = digest_weights(WORDS)


@given(blocks=st.lists(st.binary(min_size=8 * WORDS, max_size=8 * WORDS), min_size=1, max_size=4))
def test_it_is_a_weighted_sum_modulo_a_power_of_two(blocks: list[bytes]) -> None:
    pool = np.frombuffer(b"".join(blocks), dtype=np.uint8).reshape(len(blocks), -1)
    weights = np.repeat(WEIGHTS, WORDS // len(WEIGHTS))
    exact = [sum(int(x) * int(w) for x, w in zip(row, weights, strict=True)) for row in pool.view(np.int64)]
    folded = [total % (1 << 63) ^ (total >> 63 & 1) for total in exact]
    assert block_digests(pool, range(len(blocks)), WEIGHTS) == folded


@pytest.mark.parametrize("words", [16, TOGETHER, 2 * TOGETHER])
def test_blocks_have_the_digests_that_they_have_alone(words: int) -> None:
    """Small ones are digested in one call, with the same sums."""
    pool, weights = np.random.default_rng(2).integers(0, 256, (5, 8 * words), dtype=np.uint8), digest_weights(words)
    rows = pool.view(np.int64).reshape(5, len(weights), -1)
    exact = [sum(int(row.sum()) * int(weight) for row, weight in zip(block, weights, strict=True)) for block in rows]
    folded = [total % (1 << 63) ^ (total >> 63 & 1) for total in exact]
    assert block_digests(pool, [4, 0, 3], weights) == [folded[4], folded[0], folded[3]]
    assert block_digests(pool, (), weights) == []


@example(bytes(8 * WORDS), 7, 0x80)
@given(
    data=st.binary(min_size=8 * WORDS, max_size=8 * WORDS), place=st.integers(0, 8 * WORDS - 1), by=st.integers(1, 255)
)
def test_a_changed_byte_is_seen(data: bytes, place: int, by: int) -> None:
    changed = bytearray(data)
    changed[place] ^= by
    pool = np.frombuffer(data + bytes(changed), dtype=np.uint8).reshape(2, -1)
    same, other = block_digests(pool, [0, 1], WEIGHTS)
    assert same != other


@pytest.mark.parametrize("by", [8, 64, 128, 8 * WORDS // 2])
def test_shifted_memory_is_seen(by: int) -> None:
    pool = np.random.default_rng(1).integers(0, 256, (2, 8 * WORDS), dtype=np.uint8)
    pool[1] = np.roll(pool[0], by)
    same, other = block_digests(pool, [0, 1], WEIGHTS)
    assert same != other and WEIGHTS.shape == (3,) and bool((WEIGHTS % 2 == 1).all())
