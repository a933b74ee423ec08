# SPDX-License-Identifier: Apache-2.0
"""Recorded conversations over simulated workers: turns find what is cached, and no worker has too much to do."""

import random

import pytest
from recorded_load import Turn, recorded_conversations
from routing_world import RoutingWorld

HOT = 1.5


@pytest.mark.parametrize(
    ("prefill", "decode", "num_blocks", "rate", "seats"),
    [(2, 2, 4000, 1.0, 64), (3, 5, 4000, 6.0, 64), (2, 2, 4000, 4.0, 24)],
    ids=["two of each", "three and five", "more than they can serve"],
)
def test_conversations_find_what_is_cached(prefill: int, decode: int, num_blocks: int, rate: float, seats: int) -> None:
    """At least nine of ten tokens are found of those that an oracle finds, which looks into all caches."""
    world = RoutingWorld(prefill, decode, num_blocks, seats=seats)
    world.run(recorded_conversations()[:200], rate)
    assert world.cached >= 0.9 * world.oracle > 0
    assert world.skew("prefill") <= HOT and world.skew("decode") <= HOT
    assert all(worker.pool.available == worker.pool.capacity for worker in world.workers.values())


def test_by_load_alone_less_is_found_and_first_tokens_come_later() -> None:
    found, blind = RoutingWorld(2, 2, 4000), RoutingWorld(2, 2, 4000, by_cache=False)
    for world in (found, blind):
        world.run(recorded_conversations()[:100], 1.0)
    assert blind.cached < 0.8 * blind.oracle and found.cached > 1.2 * blind.cached
    assert sum(found.later_waits) / len(found.later_waits) < 0.7 * sum(blind.later_waits) / len(blind.later_waits)


def test_caches_too_small_for_all_still_serve() -> None:
    world = RoutingWorld(2, 2, 1500, seats=8)
    world.run(recorded_conversations()[:150], 0.5, pause=200.0)
    assert world.cached >= 0.9 * world.oracle > 0
    assert world.oracle < 0.8 * world.prompts, "a part of what was said is evicted before it is wanted"


@pytest.mark.parametrize("rate", [2.0, 8.0])
def test_a_prefix_that_all_share_is_no_hot_spot(rate: float) -> None:
    world, source = RoutingWorld(2, 2, 8000), random.Random(5)
    hot, moment = world.ids(2000), 0.0
    for _ in range(300):
        moment += source.expovariate(rate)
        world.at(moment, lambda: world.ask(hot + world.ids(source.randrange(100, 200)), world.ids(100)))
    world.run([], 1.0)
    assert world.cached >= 0.95 * world.oracle
    for role in ("prefill", "decode"):
        each = world.loads(role)
        assert max(each) <= HOT * sum(each) / len(each) + len(hot), "more than its share, and the prefix once"


def test_one_conversation_stays_where_it_is() -> None:
    world = RoutingWorld(2, 2, 4000)
    world.run([[Turn(200, 100) for _ in range(8)]], 1.0)
    assert [worker.generated for worker in world.workers.values() if worker.generated] == [800]
    assert world.cached >= 0.9 * world.oracle
