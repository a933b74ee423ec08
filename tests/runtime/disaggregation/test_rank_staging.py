# SPDX-License-Identifier: Apache-2.0
"""Copies of blocks in host memory between workers of several ranks: made while some rank reads them there."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from rank_groups import RankPair

from pontil.runtime.disaggregation.publisher import Done, PublishedBlocks


@pytest.fixture
def pair() -> Iterator[RankPair]:
    made = RankPair(2, 2)
    yield made
    made.close()


def test_a_peer_stages_nothing_once_every_rank_reads_its_own_memory(pair: RankPair) -> None:
    one = pair
    connector, transports = one.ours.connector, one.ours.transports
    assert connector.staged("P")
    for transport in transports:
        transport.staged = lambda peer: False  # type: ignore[method-assign]
    reports = one.ours.exchange()
    assert connector.staged("P"), "the driver has not heard of it"
    for done in reports:
        assert done.direct == ["P"]
        connector.take(replace(done, direct=["Q"]))
        connector.take(replace(done, number=0))
        assert connector.staged("P"), "that was about another attachment"
        connector.take(done)
    assert not connector.staged("P")
    descriptor = one.theirs.connector.register()
    connector.detach("P")
    connector.attach("P", descriptor)
    assert connector.staged("P")
    told = [done for _ in range(2) for done in one.ours.exchange()]
    assert [done.direct for done in told] == [["P"], []]


def test_followers_stage_what_the_driver_stages(pair: RankPair) -> None:
    one, asked = pair.theirs, list[bool]()
    follower = one.followers[1]
    publish = follower.publisher.publish

    def noted(wanted: PublishedBlocks, done: Done) -> None:
        asked.append(wanted.staged)
        publish(wanted, done)

    follower.publisher.publish = noted  # type: ignore[method-assign]
    for staged in (True, False):
        one.pools.publish([1, 2], 2, staged)
    one.exchange()
    assert asked == [True, False]
