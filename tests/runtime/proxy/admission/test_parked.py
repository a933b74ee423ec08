# SPDX-License-Identifier: Apache-2.0
"""Requests that wait for something else than room wait apart: their places are kept, and nobody waits for them."""

from itertools import count

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from pontil.runtime.foundation.fair_share import ServiceClass
from pontil.runtime.proxy.admission.fair_queue import FairQueue
from pontil.runtime.proxy.admission.priority_level import QueueEntry
from pontil.runtime.proxy.admission.request_queue import MOST_WAITING_TOKENS, RequestQueue
from pontil.runtime.proxy.fleet.service_rate import Seats
from pontil.runtime.proxy.requests.generation import Generation
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.tokenizer import Tokenizer

PLACES = st.builds(ServiceClass.place, st.sampled_from(ServiceClass), st.integers(-1, 1))
# A push of a caller's item: its place, cost and lane.
PUSHES = st.tuples(st.sampled_from("abc"), PLACES, st.integers(1, 500), st.integers(0, 1))
MOVES = st.one_of(PUSHES, st.sampled_from(["pop", "park", "put back"]), st.integers(0, 50))


class ParkableItem:
    """An item that equals only itself."""

    def __init__(self, number: int, caller: str, place: int, lane: int) -> None:
        self.number, self.caller, self.place, self.lane = number, caller, place, lane


@settings(max_examples=examples(100, 1000), deadline=None)
@given(st.lists(MOVES, max_size=120), st.booleans())
def test_what_is_put_back_has_the_place_that_it_had(
    moves: list[tuple[str, int, int, int] | str | int], fair: bool
) -> None:
    """Items of one caller and priority are served as they came, whatever was taken out meanwhile; each leaves once."""
    queue: FairQueue[ParkableItem] = FairQueue(fair)
    numbers, left = count(), list[ParkableItem]()
    pushed, parked = list[ParkableItem](), list[QueueEntry[ParkableItem]]()
    for move in moves:
        heads = list(queue.heads())
        if isinstance(move, tuple):
            caller, place, cost, lane = move
            pushed.append(ParkableItem(next(numbers), caller, place, lane))
            queue.push(pushed[-1], caller, 1.0, place, cost, lane)
        elif move == "pop" and len(queue):
            left.append(queue.pop())
        elif move == "park" and heads:
            parked.append(queue.take_out(heads[-1]))
            assert heads[-1] not in queue
        elif move == "put back" and parked:
            # The last one first: what came before it may still wait for something.
            queue.put_back(parked.pop())
        elif isinstance(move, int) and heads:
            queue.remove(heads[move % len(heads)])
            left.append(heads[move % len(heads)])
        waiting = list(queue)
        assert sorted(one.number for one in waiting + left + [entry.item for entry in parked]) == list(
            range(len(pushed))
        )
        for caller, place in {(one.caller if fair else "", one.place) for one in waiting}:
            mates = [one.number for one in waiting if (one.caller if fair else "", one.place) == (caller, place)]
            assert mates == sorted(mates)
        for level in queue.levels.values():
            for backlog in level.backlogs.values():
                assert all(list(line) == sorted(line) for line in (backlog.entries, *backlog.lanes.values()))
                assert sum(map(len, backlog.lanes.values())) == len(backlog.entries)
            assert level.cost == pytest.approx(sum(backlog.cost for backlog in level.backlogs.values()))
            assert level.weight == pytest.approx(len(level.backlogs))


@settings(max_examples=examples(50, 200), deadline=None)
@given(st.integers(1, 500), st.integers(1, 5000), st.integers(0, 40))
def test_who_was_parked_starves_nobody_and_does_not_starve(cost: int, own: int, served: int) -> None:
    """However long it was away beside a caller that is always served, its next turn is the next but one at the latest,
    and from then on both have as much: no credit was saved up meanwhile."""
    queue: FairQueue[ParkableItem] = FairQueue()
    for number in range(200):
        queue.push(ParkableItem(number, "busy", 0, 0), "busy", 1.0, 0, cost)
    for number in range(20):
        queue.push(ParkableItem(number, "parked", 0, 0), "parked", 1.0, 0, own)
    entries = [queue.take_out(item) for item in list(queue) if item.caller == "parked"]
    for _ in range(served):
        assert queue.pop().caller == "busy"
    for entry in entries:
        queue.put_back(entry)
    order = [item.caller for item in queue]
    assert "parked" in order[:2]
    taken = {"busy": 0, "parked": 0}
    while taken["parked"] < 20 * own and taken["busy"] < 100 * cost:
        caller = queue.pop().caller
        taken[caller] += cost if caller == "busy" else own
        assert abs(taken["busy"] - taken["parked"]) <= 2 * (cost + own)


def request(tokenizer: Tokenizer, number: int, tokens: int, caller: str) -> Request:
    work = Generation([5] * tokens, SamplingParams(max_tokens=20, seed=1, n=1 + number % 3))
    return Request.start(f"r{number}", work, tokenizer, 0.0, Ticket(caller=caller))


REQUEST_MOVES = st.tuples(st.sampled_from(["push", "serve", "park", "unpark", "drop"]), st.integers(0, 30))


@settings(max_examples=examples(60, 300), deadline=None)
@given(st.lists(REQUEST_MOVES, max_size=60))
def test_sums_are_of_those_that_wait_for_room_and_memory_of_all(
    tokenizer: Tokenizer, moves: list[tuple[str, int]]
) -> None:
    made = RequestQueue(10.0, lambda: Seats(8, 8))
    waiting, parked = list[Request](), list[Request]()
    for number, (move, pick) in enumerate(moves):
        now = 0.1 * number
        if move == "push":
            waiting.append(request(tokenizer, number, pick + 1, "ab"[pick % 2]))
            made.push(waiting[-1], now)
        elif move == "serve" and waiting:
            made.serve(one := next(made.waiting.heads()), now)
            waiting.remove(one)
        elif move == "park" and waiting:
            made.park(one := next(made.waiting.heads()), now)
            waiting.remove(one)
            parked.append(one)
        elif move == "unpark" and parked:
            waiting.append(parked.pop(pick % len(parked)))
            made.unpark(waiting[-1], now)
        elif move == "drop" and waiting + parked:
            one = (waiting + parked)[pick % len(waiting + parked)]
            made.drop(one, now)
            (waiting if one in waiting else parked).remove(one)
        assert len(made) == len(waiting) == len(made.waiting) and set(made.parked) == {one.id for one in parked}
        assert made.tokens == sum(len(one.prompt) for one in waiting)
        assert made.choices == sum(one.params.n for one in waiting)
        assert made.cost == pytest.approx(sum(made.cost_of(one) for one in waiting))
        for caller in "ab":
            own = [one for one in waiting + parked if one.ticket.caller == caller]
            assert made.places[caller] == len(own) and made.place_tokens[caller] == sum(len(one.prompt) for one in own)


def test_parked_requests_take_memory(tokenizer: Tokenizer) -> None:
    made = RequestQueue(10.0, lambda: Seats(8, 8))
    made.push(one := request(tokenizer, 0, 100, "a"), 0.0)
    assert made.has_place("b", 1, MOST_WAITING_TOKENS - 100)
    made.park(one, 0.0)
    assert made.has_place("b", 1, MOST_WAITING_TOKENS - 100) and not made.has_place("b", 1, MOST_WAITING_TOKENS - 99)
    made.drop(one, 1.0)
    assert made.has_place("b", 1, MOST_WAITING_TOKENS - 99) and not made.places
