# SPDX-License-Identifier: Apache-2.0
"""Proxy and schedulers together, in virtual time: no request keeps seats idle, nobody starves, seats and places in the
queue are shared by caller, and what is said stays the same."""

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from effort import examples
from engine_site import EngineSite, as_alone

from pontil.runtime.errors import Unavailable
from pontil.runtime.foundation.fair_share import FairShare
from pontil.runtime.proxy.admission.seat_rooms import SeatRooms
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.fleet.worker_release import WorkerRelease
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.proxy.routing.policy import SPARE_SEATS, Disagg
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import SCHEMA, Hello

# Requests of which no caller has room for all.
MANY = 10_000


def wait_of(stream: Stream) -> float:
    request = stream.request
    assert request.times.first_token is not None, request.mailbox.end
    return request.times.first_token - request.times.arrived


def test_another_keys_token_waits_two_seconds_at_most_beside_64_long_choices(tokenizer: Tokenizer) -> None:
    site = EngineSite(tokenizer)
    worker = site.worker("w", 64)
    greedy = site.ask("greedy", n=64, tokens=400)
    site.run(5.0)
    small = [site.ask("modest") for _ in range(3)]
    for _ in range(10):
        site.run(0.5)
        small.append(site.ask("modest"))
    more = site.ask("greedy", n=64, tokens=5)
    site.run(40.0)
    assert max(map(wait_of, small)) <= 2.0 and worker.world.scheduler.recomputed == 0
    assert site.queue.wait(Ticket(caller="modest"), 3) == 0.0, "nothing of it is left in the predicted wait"
    assert all(as_alone(stream.request) for stream in (greedy, more, *small)) and site.idle


def test_many_choices_start_beside_others_and_their_seats_are_free_as_they_end(tokenizer: Tokenizer) -> None:
    site = EngineSite(tokenizer, fair=False)
    site.worker("w", 8)
    long = [site.ask("-", tokens=300) for _ in range(7)]
    many, last = site.ask("-", n=8, tokens=20), site.ask("-", tokens=3)
    site.run(1.0)
    assert wait_of(many) < 1.0, "one free seat is enough"
    site.run(3.5)
    assert many.request.complete and wait_of(last) < 4.5
    site.run(20.0)
    assert all(as_alone(stream.request) for stream in (*long, many, last))


def test_a_short_prompt_passes_long_ones_of_its_own_caller_and_starves_none(tokenizer: Tokenizer) -> None:
    """Long ones that have no room yet. The first of them has it before shorter ones that came later."""
    site = EngineSite(tokenizer)
    site.worker("w", 64)
    site.ask("first", length=4000, tokens=2)
    site.run(3.0)
    long = [site.ask("-", length=4000, tokens=8) for _ in range(3)]
    short = [site.ask("-")]
    for _ in range(200):
        site.run(0.1)
        short.append(site.ask("-"))
    site.run(30.0)
    assert max(map(wait_of, short)) <= 0.5
    assert max(map(wait_of, long)) <= 20.0
    assert all(as_alone(stream.request) for stream in (*long, *short)) and site.idle


def test_a_release_that_cannot_be_reached_holds_up_no_other(tokenizer: Tokenizer) -> None:
    site = EngineSite(tokenizer, fair=False)
    old = site.worker("old", 2, revision="1")
    site.worker("new", 8, revision="2")
    site.measure()
    old.silent = True
    site.registry.unreachable("old")
    streams = [site.ask("-") for _ in range(12)]
    bound = [stream for stream in streams if stream.request.release == WorkerRelease.of(old.hello)]
    site.run(1.0)
    assert bound and all(stream.request.complete != (stream in bound) for stream in streams)
    old.silent = False
    site.run(2.0)
    assert all(as_alone(stream.request) for stream in streams)


def test_one_caller_cannot_fill_the_queue(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pontil.runtime.proxy.admission.request_queue.MOST_WAITING", 40)
    site = EngineSite(tokenizer)
    site.worker("w", 16)
    site.measure()
    site.made["w"].pace = 1e6
    places = {"greedy": 0, "other": 0}
    for caller in ("greedy", "other"):
        with pytest.raises(Unavailable, match="too many prompts"):
            for _ in range(MANY):
                site.ask(caller, tokens=9)
                places[caller] = site.queue.places[caller]
    assert places == {"greedy": 30, "other": 7}
    for number in range(3):
        site.ask(f"new{number}")


def test_a_caller_of_more_weight_has_more_waiting_though_places_have_no_weights(tokenizer: Tokenizer) -> None:
    """The predicted wait limits how much a caller has waiting, and goes by its weight, long before its places do."""

    def admitted(*asking: tuple[str, float]) -> int:
        site = EngineSite(tokenizer)
        site.worker("w", 16)
        site.measure()
        for caller, weight in asking:
            with pytest.raises(Unavailable, match="wait for a first token"):
                for _ in range(MANY):
                    site.ask(caller, weight=weight, length=50)
        return site.queue.places["heavy"]

    alone = admitted(("heavy", 9.0))
    assert alone > 20 and 0.8 * alone <= admitted(("light", 1.0), ("heavy", 9.0)) <= alone


def test_a_reader_that_takes_nothing_gives_its_seat_to_those_that_wait(tokenizer: Tokenizer) -> None:  # F7
    site = EngineSite(tokenizer, fair=False)
    site.worker("w", 2)
    site.measure()
    unread = [site.ask("-", tokens=400), site.ask("-", n=2, tokens=400)]
    site.run(1.0)
    for stream in unread:
        stream.note_reader(takes=False)
    others = [site.ask("-", tokens=5) for _ in range(6)]
    site.run(5.0)
    assert all(stream.request.complete for stream in others) and len(site.dispatcher.suspended) == 2
    assert site.registry.workers["w"].taken == 0
    site.run(30.0)
    told = [len(answer.ids) for stream in unread for answer in stream.request.answers]
    assert max(told) < 400 and len(site.dispatcher.suspended) == 2, "they wait for their readers, for as long as these"
    for stream in unread:
        stream.note_reader(takes=True)
    site.run(20.0)
    for stream in unread:
        request, n = stream.request, stream.request.params.n
        assert as_alone(request) and request.billed.completion_tokens == 400 * n
        assert sum(len(said.ids) for said in request.mailbox.deltas.values()) == 400 * n, "each token is said once"
    assert site.idle


def test_a_reader_that_takes_nothing_goes_on_while_nobody_waits(tokenizer: Tokenizer) -> None:  # F7
    site = EngineSite(tokenizer)
    site.worker("w", 2)
    stream = site.ask("-", tokens=400)
    stream.note_reader(takes=False)
    site.run(10.0)
    assert stream.request.complete and stream.request.attempts.number == 0


def test_a_reader_that_takes_nothing_gives_no_seat_for_a_prompts_turn(tokenizer: Tokenizer) -> None:  # F7
    site = EngineSite(tokenizer)
    site.worker("w", 64)
    unread = site.ask("-", tokens=600)
    site.run(1.0)
    unread.note_reader(takes=False)
    site.made["w"].pace = 0.2
    for _ in range(2):
        site.ask("-", length=1500, tokens=2)
    site.run(4.5)
    assert len(site.queue) and unread.request.attempts.number == 0, (
        "its prompt, computed again, would make them wait longer"
    )


@pytest.mark.parametrize("disagg", ["never", "auto"])
def test_seats_are_looked_for_where_requests_have_them(disagg: Disagg) -> None:
    """A prefill worker has seats for whole requests where nothing is disaggregated, or can be."""
    registry, asking = Registry(ttl=60.0), cast(Any, SimpleNamespace(release=None, share=FairShare("a")))
    for name, role in (("p", "prefill"), ("d", "decode")):
        registry.hello(Hello(name, SCHEMA, name, role, 1, "cpu", "m", "m", "k", "", 16, 99, 2, 512, 256), 0.0)
    prefill, decode = registry.workers.values()
    decode.seat(FairShare("a"), 2 + SPARE_SEATS)
    assert SeatRooms(registry.generating, disagg).may_seat(asking, True) == (disagg == "never")
    decode.lost_peers = frozenset(("p",))
    assert SeatRooms(registry.generating, disagg).may_seat(asking, True)
    prefill.seat(FairShare("a"), 2 + SPARE_SEATS)
    assert not SeatRooms(registry.generating, disagg).may_seat(asking, True)


@pytest.mark.parametrize("seed", range(examples(6, 300)))
def test_random_mixes_are_served_in_time_and_shared(tokenizer: Tokenizer, seed: int) -> None:
    """Keys with weights, 1 to 64 choices, releases, priorities, and clients that leave. After each round no seat is
    idle that a waiting request could take, and seats are shared within one choice."""
    random = Random(seed)
    site = EngineSite(tokenizer, fair=random.random() < 0.8)
    seats = random.choice([2, 4, 16, 64])
    for place in range(random.choice([1, 2])):
        site.worker(f"w{place}", seats, revision=random.choice([None, "1", "2"]))
    site.measure()
    weights = {name: random.choice([0.5, 1.0, 4.0]) for name in "abcd"}
    streams: list[Stream] = []
    for _ in range(random.randint(1, 40)):
        caller, n = random.choice("abcd"), min(seats, random.choice([1, 1, 1, 3, 64]))
        tokens, priority = random.choice([1, 4, 30]), random.choice([0, 0, 0, 2])
        streams.append(site.ask(caller, n, tokens, weights[caller], priority, random.choice([3, 20, 200])))
        site.run(random.choice([0.0, 0.0, 0.1, 1.0]))
        if random.random() < 0.1:
            random.choice(streams).cancel()
        expect_no_idle_seat(site)
    for _ in range(600):
        site.run(0.5)
        expect_no_idle_seat(site)
        if site.idle:
            break
    assert site.idle and not len(site.queue) and not site.queue.places
    assert all(as_alone(one.request) for one in streams if one.request.complete)
    late = [one.end for one in streams if isinstance(one.end, Exception) and "cancelled" not in str(one.end)]
    assert not late
    for worker in site.registry.workers.values():
        assert not worker.taken and not worker.uncomputed
        assert not worker.seat_counts.held and not worker.prompt_counts.held


def expect_no_idle_seat(site: EngineSite) -> None:
    """Check that what waits in the proxy waits for a seat or for prompts that are being computed."""
    for request in site.queue.waiting.heads():
        for worker in site.registry.generating.serving(request.release):
            load = worker.load_for(worker.load, request.share, site.queue.waiting.may_claim(request))
            assert not (load.can_prefill(len(request.prompt)) and (load.can_seat() or load.claimable))
