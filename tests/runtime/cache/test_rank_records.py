# SPDX-License-Identifier: Apache-2.0
"""The records of a worker of several ranks: a block is found again where every rank has its part."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kept_files import RankFiles, key_of

from pontil.runtime.cache.follower_records import left_in


@pytest.fixture
def ranks() -> Iterator[RankFiles]:
    made = RankFiles()
    yield made
    made.close()


def test_a_block_is_left_where_every_rank_has_its_part(ranks: RankFiles) -> None:
    first = ranks.start()
    kept, damaged, late = (ranks.compute(first, number) for number in (11, 12, 13))
    first.recorder.rest(2.0)
    ranks.cut = True
    first.recorder.rest(1.0)
    ranks.storages[2].shared[damaged][1] ^= 1
    ranks.cut = False
    second = ranks.start()
    assert [second.found(key_of(number)) for number in (11, 12, 13)] == [11, None, None]
    assert second.recorder.restored == 1 and not second.recorder.damaged
    assert all(one.records.read(late) is None and one.records.read(kept) for one in ranks.followers)
    assert not ranks.storages[0].shared[damaged].any() and not ranks.storages[2].shared[damaged].any()


def test_a_rank_that_has_another_content_of_a_block_has_not_its_part(ranks: RankFiles) -> None:
    """No orders reach the followers: they keep the record and the bytes of what the driver has evicted."""
    first = ranks.start()
    block = ranks.compute(first, 11)
    first.recorder.rest(100.0)
    ranks.cut = True
    first.pool.discard(block)
    assert first.compute(12) == block
    first.recorder.rest(100.0)
    ranks.cut = False
    second = ranks.start()
    assert second.recorder.restored == 0 and second.found(key_of(12)) is None
    assert second.found(key_of(11)) is None


def test_followers_forget_what_the_driver_does_not_have(ranks: RankFiles) -> None:
    first = ranks.start()
    block = ranks.compute(first, 11)
    first.recorder.rest(100.0)
    first.recorder.records.clear(block)
    second = ranks.start()
    assert second.recorder.restored == 0
    assert all(one.records.read(block) is None for one in ranks.followers)


@given(st.binary(max_size=40))
def test_what_a_follower_says_is_read_or_tells_of_nothing(told: bytes) -> None:
    assert len(left_in(told)) <= len(told) // 16 and (len(told) % 16 == 0 or left_in(told) == {})
