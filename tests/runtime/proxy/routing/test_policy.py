# SPDX-License-Identifier: Apache-2.0
"""Routing of requests to workers."""

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis.strategies import DrawFn, booleans, builds, composite, integers, lists, sampled_from

from pontil.runtime.proxy.routing.pace import WorkerPace
from pontil.runtime.proxy.routing.policy import (
    AHEAD_STEPS,
    MOST_STATED,
    PULLED,
    SEAT_TOKENS,
    SPARE_SEATS,
    TURN_TOKENS,
    Costs,
    OtherLoad,
    Route,
    WorkerLoad,
    by_cost,
    cheapest,
    every_route,
    next_route,
    plan,
)

MIXED = WorkerLoad("m", "mixed:0", "mixed", "e", in_flight=0, free_blocks=10, seats=4, context=100)
PREFILL = replace(MIXED, incarnation="p", name="prefill:0", role="prefill")
DECODE = replace(MIXED, incarnation="d", name="decode:0", role="decode")
# Cost of pulling 100 tokens, rounded up.
PULLED_AT_MOST = ceil(100 * PULLED)


def test_a_pair_when_both_roles_are_there() -> None:
    workers = [
        PREFILL,
        replace(PREFILL, incarnation="p2"),
        replace(DECODE, in_flight=3),
        replace(DECODE, incarnation="d2"),
    ]
    assert plan(workers, "always") == Route(workers[0], workers[3])


@pytest.mark.parametrize("worker", [PREFILL, DECODE, MIXED])
def test_any_worker_alone_serves_whole_requests(worker: WorkerLoad) -> None:  # C12
    assert plan([worker], "always") == Route.alone(worker)


def test_never_spreads_whole_requests_over_all() -> None:
    assert plan([replace(PREFILL, in_flight=3), DECODE], "never") == Route.alone(DECODE)


def test_nobody_is_none() -> None:  # C1
    assert plan([], "always") is None


def test_ties_go_to_more_free_blocks_then_to_the_first() -> None:
    roomy = replace(MIXED, incarnation="m2", free_blocks=20)
    assert plan([MIXED, roomy], "always") == Route.alone(roomy)
    assert plan([MIXED, replace(MIXED, incarnation="m3")], "always") == Route.alone(MIXED)


def test_routes_name_their_workers_and_phases() -> None:
    assert Route(PREFILL, DECODE).name == "prefill:0>decode:0"
    assert Route(PREFILL, DECODE).phases == {"p": "prefill", "d": "decode"}
    assert Route.alone(MIXED).name == "mixed:0" and Route.alone(MIXED).phases == {"m": "whole"}


def test_every_route_is_each_pair_and_whoever_is_in_none() -> None:
    other = replace(DECODE, incarnation="d2")
    assert every_route([PREFILL, DECODE, MIXED, other], "auto") == [
        Route(PREFILL, DECODE), Route(PREFILL, other), Route.alone(MIXED)
    ]  # fmt: skip
    assert every_route([PREFILL, DECODE], "never") == [Route.alone(PREFILL), Route.alone(DECODE)]
    assert every_route([DECODE], "always") == [Route.alone(DECODE)] and every_route([], "always") == []


def test_an_answer_goes_to_a_slow_worker_when_the_fast_one_is_as_slow_by_its_rows() -> None:
    """Steps of the slow one take three times as long, and 10 rows as long as a step without any: with 20 more the fast
    one's take as long as the slow one's with none."""
    slow = replace(DECODE, incarnation="d2", pace=WorkerPace(3.0, 3.0, SEAT_TOKENS * 10 * 2.0))
    for busy, chosen in ((19, "d"), (21, "d2")):
        route = plan([PREFILL, replace(DECODE, in_flight=busy), slow], "always")
        assert route is not None and route.decode.incarnation == chosen


def test_a_prompt_goes_to_a_slow_worker_when_the_fast_one_has_so_much_to_do() -> None:
    slow = replace(PREFILL, incarnation="p2", pace=WorkerPace(3.0, 1.0, 0.0))
    for before, chosen in ((199, "p"), (201, "p2")):
        route = plan([replace(PREFILL, uncomputed=before), slow, DECODE], "always", prompt_tokens=100)
        assert route is not None and route.prefill.incarnation == chosen


def test_a_slow_worker_has_less_ahead() -> None:
    assert replace(MIXED, pace=WorkerPace(2.0, 1.0, 0.0)).ahead == MIXED.ahead // 2
    # A whole step in any case.
    assert replace(MIXED, pace=WorkerPace(9.0, 9.0, 0.0)).ahead == MIXED.step_tokens


def test_a_worker_that_does_both_takes_what_the_pairs_have_no_seat_for() -> None:
    """One that is of no pair is not idle beside a queue."""
    full = replace(DECODE, taken=6)
    assert next_route([PREFILL, full, MIXED], "auto", 10) == Route.alone(MIXED)
    assert next_route([PREFILL, full, replace(MIXED, taken=6)], "auto", 10) is None
    assert next_route([PREFILL, full, MIXED], "always", 10) is None
    assert next_route([PREFILL, DECODE, MIXED], "auto", 10) == Route(PREFILL, DECODE)
    busy = replace(PREFILL, uncomputed=50_000)
    for route in (next_route([busy, DECODE, MIXED], "auto", 10), plan([busy, DECODE, MIXED], "auto", prompt_tokens=10)):
        assert route is not None and route.workers[0].role != "prefill"
    assert plan([busy, replace(DECODE, in_flight=3), MIXED], "auto", prompt_tokens=10) == Route.alone(MIXED)


def test_nobody_waits_for_prefill_workers_beside_an_idle_decode_worker() -> None:
    """However long the prompt: a backlog may wait for a decode worker that makes no progress."""
    full, working = replace(PREFILL, uncomputed=AHEAD_STEPS * PREFILL.step_tokens), replace(DECODE, in_flight=1)
    idle = replace(DECODE, incarnation="d2")
    assert next_route([full, working, idle], "auto", 5000) == Route.alone(idle)
    assert next_route([full, working], "auto", 5000) is None and next_route([full, idle], "always", 5000) is None


def test_auto_splits_while_the_prefill_worker_keeps_up() -> None:
    assert plan([PREFILL, DECODE], "auto", prompt_tokens=100_000) == Route(PREFILL, DECODE)
    busy = replace(PREFILL, uncomputed=2 * 100 + DECODE.step_tokens - 100 - PULLED_AT_MOST)
    assert plan([busy, DECODE], "auto", prompt_tokens=100) == Route(busy, DECODE)


def test_auto_lets_a_decode_worker_read_what_prefill_workers_cannot() -> None:
    """The one with the least to read, only when it is sooner by a step and the pull that is saved, and never if every
    request is to be split."""
    busy = replace(PREFILL, uncomputed=2 * 100 + DECODE.step_tokens - 99 - PULLED_AT_MOST)
    other = replace(DECODE, incarnation="d2", uncomputed=7)
    assert plan([busy, other, DECODE], "auto", prompt_tokens=100) == Route.alone(DECODE)
    assert plan([busy, other, DECODE], "always", prompt_tokens=100) == Route(busy, other)
    busy_decode = replace(DECODE, uncomputed=1)
    assert plan([busy, busy_decode], "auto", prompt_tokens=100) == Route(busy, busy_decode)
    idle = replace(PREFILL, incarnation="p2")
    assert plan([busy, idle, DECODE], "auto", prompt_tokens=100) == Route(idle, DECODE)


@given(counts=lists(integers(1, 3000), min_size=1, max_size=60))
def test_auto_keeps_both_kinds_of_workers_at_work(counts: list[int]) -> None:
    """Prompts come at once: neither kind has much more to read, in time, than the other."""
    prefill, decode = PREFILL, DECODE
    for count in counts:
        route = plan([prefill, decode], "auto", prompt_tokens=count)
        if route is not None and route.is_pair:
            prefill = replace(prefill, uncomputed=prefill.uncomputed + count)
        else:
            decode = replace(decode, uncomputed=decode.uncomputed + count)
    slack = 2 * max(counts) + DECODE.step_tokens
    assert prefill.uncomputed <= 2 * decode.uncomputed + slack
    assert 2 * decode.uncomputed <= prefill.uncomputed + max(counts)


def test_a_request_that_broke_is_split_again_before_it_is_not() -> None:
    busy = replace(PREFILL, uncomputed=100_000)
    assert plan([busy, DECODE], "auto", {("x", "y")}, 10) == Route(busy, DECODE)
    assert plan([busy, DECODE], "auto", {("p", "d")}, 10) == Route.alone(DECODE)


def test_a_prompt_goes_where_most_of_it_is_cached() -> None:
    other = replace(PREFILL, incarnation="p2", found=600, uncomputed=500)
    assert plan([PREFILL, other, DECODE], "auto", prompt_tokens=700) == Route(other, DECODE)
    assert plan([PREFILL, replace(other, uncomputed=601), DECODE], "auto", prompt_tokens=700) == Route(PREFILL, DECODE)
    mixed = replace(MIXED, incarnation="m2", found=64)
    assert plan([MIXED, mixed], "auto", prompt_tokens=70) == Route.alone(mixed)


def test_a_decode_worker_that_has_nearly_all_of_a_prompt_takes_it_whole() -> None:
    """The answer to the last turn is there only; prefill workers have the prompt of that turn."""
    last, holder = replace(PREFILL, found=320), replace(DECODE, incarnation="d2", found=640)
    assert plan([last, DECODE, holder], "auto", prompt_tokens=680) == Route.alone(holder)
    assert plan([last, DECODE, holder], "always", prompt_tokens=680) == Route(last, holder)
    # Most of a long prompt is for a prefill worker to compute.
    third = replace(holder, found=3000)
    assert plan([PREFILL, third], "auto", prompt_tokens=8000) == Route(PREFILL, third)


def test_an_answer_is_generated_where_the_prompt_need_not_be_pulled() -> None:
    holder = replace(DECODE, incarnation="d2", found=512)
    assert plan([PREFILL, DECODE, holder], "always", prompt_tokens=600) == Route(PREFILL, holder)
    crowded = replace(holder, in_flight=2)
    assert plan([PREFILL, DECODE, crowded], "always", prompt_tokens=600) == Route(PREFILL, DECODE)


def test_a_worker_that_had_more_than_its_share_is_avoided() -> None:
    other = replace(PREFILL, incarnation="p2", recent=1000)
    warm, hot = replace(PREFILL, found=1000, recent=4000), replace(PREFILL, found=1000, recent=8000)
    assert plan([hot, other, DECODE], "auto", prompt_tokens=1100) == Route(other, DECODE)
    assert plan([warm, other, DECODE], "auto", prompt_tokens=1100) == Route(warm, DECODE)


@composite
def loads(draw: DrawFn) -> list[WorkerLoad]:
    """Return a few workers of any roles, loads and caches, which other proxies use too."""
    count, small = draw(integers(1, 6)), integers(0, 6)
    tokens = sampled_from([0, 1, 16, 255, 256, 1023, 1024, 5000])
    others = builds(OtherLoad, proxies=integers(0, 3), in_flight=small, taken=small, uncomputed=tokens)
    return [
        draw(
            builds(
                WorkerLoad, incarnation=sampled_from([f"w{place}"]), name=sampled_from([f"w:{place}"]),
                role=sampled_from(["prefill", "decode", "mixed"]), peer_endpoint=sampled_from(["e"]),
                in_flight=small, free_blocks=small, seats=integers(1, 4), context=sampled_from([1000]),
                uncomputed=tokens, step_tokens=sampled_from([64, 256]), taken=small, found=tokens, recent=tokens,
                others=others, prompts=integers(1, 3),
            )
        )
        for place in range(count)
    ]  # fmt: skip


@given(workers=loads(), prompt_tokens=integers(0, 6000), never=booleans())
def test_no_request_is_sent_where_there_is_no_room(workers: list[WorkerLoad], prompt_tokens: int, never: bool) -> None:
    """A worker may have more to do than usual only by what it saves, and what others have given it leaves this proxy
    its share of both and no more than the rest."""
    workers = [replace(worker, found=min(worker.found, prompt_tokens)) for worker in workers]
    route = next_route(workers, "never" if never else "auto", prompt_tokens)
    if route is None:
        return
    computes = route.prefill
    whole, others = AHEAD_STEPS * computes.step_tokens, computes.others
    least = min(worker.found for worker in workers)
    assert computes.ahead == max(whole - others.uncomputed, max(1, whole // (others.proxies + 1)))
    turns = computes.prompts * max(TURN_TOKENS, computes.missing(prompt_tokens))
    assert min(computes.uncomputed, turns) < computes.ahead + computes.found - least
    seated = route.workers[-1]
    share = max(1, seated.seats // (seated.others.proxies + 1))
    room = max(share, seated.seats + SPARE_SEATS - seated.others.taken)
    assert seated.taken < room or not seated.taken


@given(workers=loads(), prompt_tokens=integers(0, 6000), never=booleans())
def test_no_proxy_is_starved_by_others(workers: list[WorkerLoad], prompt_tokens: int, never: bool) -> None:
    """A proxy that has nothing anywhere always has a route, whatever the others have given to the workers."""
    idle = [replace(one, found=0, uncomputed=0, taken=0, in_flight=0) for one in workers]
    assert next_route(idle, "never" if never else "auto", prompt_tokens) is not None


@given(workers=loads(), prompt_tokens=integers(1, 6000))
def test_whose_work_it_is_does_not_matter_to_a_cost(workers: list[WorkerLoad], prompt_tokens: int) -> None:
    own = [
        replace(one, others=OtherLoad(), in_flight=one.all_in_flight, uncomputed=one.all_uncomputed) for one in workers
    ]
    made, known = (plan(some, "auto", prompt_tokens=prompt_tokens) for some in (workers, own))
    assert made is not None and known is not None and made.phases == known.phases


@given(workers=loads(), prompt_tokens=integers(1, 6000), found=integers(0, 6000))
def test_equal_caches_leave_the_choice_to_load(workers: list[WorkerLoad], prompt_tokens: int, found: int) -> None:
    """Tokens that all have are as good as what none has: the pair, or the worker, is the one with the least load."""
    found = min(found, prompt_tokens)
    same = [replace(worker, found=found, recent=0) for worker in workers]
    route = plan(same, "always", prompt_tokens=prompt_tokens)
    assert route is not None
    rivals = [worker for worker in same if worker.role == route.prefill.role]
    if route.is_pair:
        assert route.prefill.all_uncomputed == min(worker.all_uncomputed for worker in rivals)
        assert route.decode.all_in_flight == min(worker.all_in_flight for worker in same if worker.role == "decode")
    else:
        assert not any(
            worker.all_uncomputed < route.decode.all_uncomputed and worker.all_in_flight < route.decode.all_in_flight
            for worker in same
        )


@given(prefix=integers(0, 4000), own=integers(1, 200), count=integers(2, 4), at_once=booleans())
def test_one_hot_prefix_is_no_hot_spot(prefix: int, own: int, count: int, at_once: bool) -> None:
    """Requests with one prefix come, all at once or each when the last was computed: no worker has more than 1.5 times
    its even share of the tokens, but for what the prefix costs once and what it may have ahead."""
    workers = {f"p{place}": replace(PREFILL, incarnation=f"p{place}") for place in range(count)}
    for _ in range(60 * count):
        route = plan([*workers.values(), DECODE], "always", prompt_tokens=prefix + own)
        assert route is not None
        chosen = route.prefill
        missing = chosen.missing(prefix + own)
        waits = chosen.uncomputed + missing if at_once else 0
        workers[chosen.incarnation] = replace(chosen, found=prefix, recent=chosen.recent + missing, uncomputed=waits)
    done = [worker.recent for worker in workers.values()]
    assert max(done) <= 1.5 * sum(done) / count + prefix + own + PREFILL.ahead


@given(integers(1, 64), integers(0, 200), integers(0, 3), integers(0, 80))
def test_every_proxy_may_fill_its_share_and_no_more_than_what_others_leave(
    seats: int, others: int, proxies: int, taken: int
) -> None:  # fmt: skip
    load = replace(MIXED, seats=seats, taken=taken, others=OtherLoad(proxies, taken=others))
    share = max(1, seats // (proxies + 1))
    assert load.can_seat() == (taken + 1 <= max(share, seats + SPARE_SEATS - others) or taken == 0)
    ahead = AHEAD_STEPS * load.step_tokens
    busy = replace(load, uncomputed=taken * 16, others=OtherLoad(proxies, uncomputed=others * 16))
    allowed = max(ahead - others * 16, ahead // (proxies + 1))
    assert busy.can_prefill(8000) == (taken * 16 < allowed)
    assert busy.can_prefill(8000, 96) == (taken * 16 < allowed + 96)


def test_a_short_prompt_has_room_beside_a_long_one_and_a_long_one_has_none() -> None:
    busy = replace(MIXED, uncomputed=50_000)
    assert busy.can_prefill(30) and busy.can_prefill(1000) and not busy.can_prefill(1024)
    busy = replace(busy, prompts=16)
    assert not busy.can_prefill(30) and replace(busy, prompts=15).can_prefill(30)


def test_what_others_have_given_counts_in_the_choice() -> None:
    busy = replace(DECODE, others=OtherLoad(1, in_flight=3))
    assert plan([PREFILL, busy, replace(DECODE, incarnation="d2", in_flight=2)], "always") == Route(
        PREFILL, replace(DECODE, incarnation="d2", in_flight=2)
    )
    assert OtherLoad.of({"taken": -4, "in_flight": 1 << 60, "else": 1}) == OtherLoad(in_flight=MOST_STATED)
    assert OtherLoad.of(None) == OtherLoad()


def test_in_a_large_fleet_every_worker_is_in_a_pair_that_is_tried() -> None:
    """All pairs of 150 and 151 workers would take hours, and a list of 22,650 rows after each."""
    prefill = [replace(PREFILL, incarnation=f"p{number}") for number in range(150)]
    decode = [replace(DECODE, incarnation=f"d{number}") for number in range(151)]
    routes = every_route([*prefill, *decode], "auto")
    assert len(routes) == 151 == len(set(routes)) and all(route.is_pair for route in routes)
    assert {worker for route in routes for worker in route.workers} == {*prefill, *decode}
    assert len(every_route([*prefill[:16], *decode[:16]], "auto")) == 256
    assert len(every_route([*prefill, *decode], "never")) == 301


LOADS = builds(
    WorkerLoad, sampled_from("abcdef"), sampled_from("ab"), sampled_from(["prefill", "decode"]), sampled_from("e"),
    integers(0, 3), integers(0, 2), integers(1, 4), integers(100, 101), integers(0, 3), sampled_from([1, 256]),
    integers(0, 4), sampled_from([0, 16, 64]), sampled_from([0, 3, 5000]),
    builds(OtherLoad, integers(0, 1), integers(0, 2), integers(0, 2), integers(0, 2)),
)  # fmt: skip


@given(lists(LOADS, min_size=1, max_size=8), integers(0, 100))
def test_the_cheapest_is_the_first_of_all_in_order(workers: list[WorkerLoad], prompt_tokens: int) -> None:
    """Ties, of which there are many, are decided alike."""
    costs = Costs.of(workers, prompt_tokens)
    for cost in (costs.prefill, costs.decode, costs.whole, costs.relieving):
        assert cheapest(workers, cost) is by_cost(workers, cost)[0]


def test_a_pair_whose_link_is_cut_is_no_route() -> None:
    lonely = replace(DECODE, lost_peers=frozenset({"p"}))
    other, joined = replace(PREFILL, incarnation="p2"), replace(DECODE, incarnation="d2", in_flight=3)
    assert plan([PREFILL, lonely, joined], "always") == Route(PREFILL, joined)
    assert plan([PREFILL, other, lonely], "always") == Route(other, lonely)
    assert next_route([PREFILL, other, lonely], "always", 20, 1) == Route(other, lonely)
    assert next_route([PREFILL, lonely, joined], "always", 20, 1) == Route(PREFILL, joined)
    assert every_route([PREFILL, lonely, joined], "auto") == [Route(PREFILL, joined)]


def test_workers_that_are_all_apart_serve_alone() -> None:
    lonely = replace(DECODE, lost_peers=frozenset({"p"}))
    full = replace(lonely, taken=lonely.seats + SPARE_SEATS)
    for disagg in ("auto", "always"):
        assert plan([PREFILL, lonely], disagg) in (Route.alone(PREFILL), Route.alone(lonely))
        assert next_route([PREFILL, lonely], disagg, 20, 1) is not None
        assert next_route([PREFILL, full], disagg, 20, 1) == Route.alone(PREFILL)
    joined = replace(DECODE, incarnation="d2", taken=DECODE.seats + SPARE_SEATS)
    assert next_route([PREFILL, lonely, joined], "always", 20, 1) == Route.alone(lonely)
    assert plan([PREFILL, lonely], "always", frozenset({("d",)})) == Route.alone(PREFILL)
