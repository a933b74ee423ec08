# SPDX-License-Identifier: Apache-2.0
"""Routing of requests to workers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists

from pontil.runtime.proxy.policy import (
    AHEAD_STEPS,
    MOST_STATED,
    SPARE_SEATS,
    CollocatedRoute,
    DisaggregatedRoute,
    OtherLoad,
    WorkerLoad,
    every_route,
    plan,
)

MIXED = WorkerLoad("m", "mixed:0", "mixed", "e", in_flight=0, free_blocks=10, seats=4, context=100)
PREFILL = replace(MIXED, incarnation="p", name="prefill:0", role="prefill")
DECODE = replace(MIXED, incarnation="d", name="decode:0", role="decode")


def test_a_pair_when_both_roles_are_there() -> None:
    workers = [
        PREFILL,
        replace(PREFILL, incarnation="p2"),
        replace(DECODE, in_flight=3),
        replace(DECODE, incarnation="d2"),
    ]
    assert plan(workers, "always") == DisaggregatedRoute(workers[0], workers[3])


@pytest.mark.parametrize("worker", [PREFILL, DECODE, MIXED])
def test_any_worker_alone_serves_whole_requests(worker: WorkerLoad) -> None:  # C12
    assert plan([worker], "always") == CollocatedRoute(worker)


def test_never_spreads_whole_requests_over_all() -> None:
    assert plan([replace(PREFILL, in_flight=3), DECODE], "never") == CollocatedRoute(DECODE)


def test_nobody_is_none() -> None:  # C1
    assert plan([], "always") is None


def test_ties_go_to_more_free_blocks_then_to_the_first() -> None:
    roomy = replace(MIXED, incarnation="m2", free_blocks=20)
    assert plan([MIXED, roomy], "always") == CollocatedRoute(roomy)
    assert plan([MIXED, replace(MIXED, incarnation="m3")], "always") == CollocatedRoute(MIXED)


def test_routes_name_their_workers_and_phases() -> None:
    assert DisaggregatedRoute(PREFILL, DECODE).name == "prefill:0>decode:0"
    assert DisaggregatedRoute(PREFILL, DECODE).phases == {"p": "prefill", "d": "decode"}
    assert CollocatedRoute(MIXED).name == "mixed:0" and CollocatedRoute(MIXED).phases == {"m": "whole"}


def test_every_route_is_each_pair_and_whoever_is_in_none() -> None:
    other = replace(DECODE, incarnation="d2")
    assert every_route([PREFILL, DECODE, MIXED, other], "auto") == [
        DisaggregatedRoute(PREFILL, DECODE), DisaggregatedRoute(PREFILL, other), CollocatedRoute(MIXED)
    ]  # fmt: skip
    assert every_route([PREFILL, DECODE], "never") == [CollocatedRoute(PREFILL), CollocatedRoute(DECODE)]
    assert every_route([DECODE], "always") == [CollocatedRoute(DECODE)] and every_route([], "always") == []


def test_auto_splits_while_the_prefill_worker_keeps_up() -> None:
    assert plan([PREFILL, DECODE], "auto", prompt_tokens=100_000) == DisaggregatedRoute(PREFILL, DECODE)
    busy = replace(PREFILL, uncomputed=2 * 100 + DECODE.step_tokens - 100)
    assert plan([busy, DECODE], "auto", prompt_tokens=100) == DisaggregatedRoute(busy, DECODE)


def test_auto_lets_a_decode_worker_read_what_prefill_workers_cannot() -> None:
    """The one with the least to read, only when it is sooner by a step, and never if every request is to be split."""
    busy = replace(PREFILL, uncomputed=2 * 100 + DECODE.step_tokens - 99)
    other = replace(DECODE, incarnation="d2", uncomputed=7)
    assert plan([busy, other, DECODE], "auto", prompt_tokens=100) == CollocatedRoute(DECODE)
    assert plan([busy, other, DECODE], "always", prompt_tokens=100) == DisaggregatedRoute(busy, other)
    busy_decode = replace(DECODE, uncomputed=1)
    assert plan([busy, busy_decode], "auto", prompt_tokens=100) == DisaggregatedRoute(busy, busy_decode)
    idle = replace(PREFILL, incarnation="p2")
    assert plan([busy, idle, DECODE], "auto", prompt_tokens=100) == DisaggregatedRoute(idle, DECODE)


@given(counts=lists(integers(1, 3000), min_size=1, max_size=60))
def test_auto_keeps_both_kinds_of_workers_at_work(counts: list[int]) -> None:
    """Prompts come at once: neither kind has much more to read, in time, than the other."""
    prefill, decode = PREFILL, DECODE
    for count in counts:
        if isinstance(plan([prefill, decode], "auto", prompt_tokens=count), CollocatedRoute):
            decode = replace(decode, uncomputed=decode.uncomputed + count)
        else:
            prefill = replace(prefill, uncomputed=prefill.uncomputed + count)
    slack = 2 * max(counts) + DECODE.step_tokens
    assert prefill.uncomputed <= 2 * decode.uncomputed + slack
    assert 2 * decode.uncomputed <= prefill.uncomputed + max(counts)


def test_a_request_that_broke_is_split_again_before_it_is_not() -> None:
    busy = replace(PREFILL, uncomputed=100_000)
    assert plan([busy, DECODE], "auto", {("x", "y")}, 10) == DisaggregatedRoute(busy, DECODE)
    assert plan([busy, DECODE], "auto", {("p", "d")}, 10) == CollocatedRoute(DECODE)


@given(integers(1, 64), integers(0, 200), integers(0, 3), integers(0, 80))
def test_every_proxy_may_fill_its_share_and_no_more_than_what_others_leave(
    seats: int, others: int, proxies: int, taken: int
) -> None:  # fmt: skip
    load = replace(MIXED, seats=seats, taken=taken, others=OtherLoad(proxies, taken=others))
    share = max(1, seats // (proxies + 1))
    assert load.can_seat(1) == (taken + 1 <= max(share, seats + SPARE_SEATS - others) or taken == 0)
    ahead = AHEAD_STEPS * load.step_tokens
    busy = replace(load, uncomputed=taken * 16, others=OtherLoad(proxies, uncomputed=others * 16))
    assert busy.can_prefill == (taken * 16 < max(ahead - others * 16, ahead // (proxies + 1)))


def test_what_others_have_given_counts_in_the_choice() -> None:
    busy = replace(DECODE, others=OtherLoad(1, in_flight=3))
    assert plan([PREFILL, busy, replace(DECODE, incarnation="d2", in_flight=2)], "always") == DisaggregatedRoute(
        PREFILL, replace(DECODE, incarnation="d2", in_flight=2)
    )
    assert OtherLoad.of({"taken": -4, "in_flight": 1 << 60, "else": 1}) == OtherLoad(in_flight=MOST_STATED)
    assert OtherLoad.of(None) == OtherLoad()
