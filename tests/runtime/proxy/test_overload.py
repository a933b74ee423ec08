# SPDX-License-Identifier: Apache-2.0
"""Goodput under overload: admitted requests are answered in time, and the workers are never idle because of
refusals."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from statistics import median

import pytest
from effort import by_default
from proxy_configs import bare_config
from submitting import submit
from virtual_site import Clock, VirtualProxy, VirtualWorker

from pontil.runtime.errors import Unavailable
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.proxy.requests.ticket import Allowance
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.tokenizer import Tokenizer

DEADLINE, WARM, SECONDS = 10.0, 15.0, 75.0
# Workers whose bottleneck is prompts, and workers that are short of seats.
SPEEDS = {"prompts": (1_500.0, 0.02), "seats": (20_000.0, 0.15)}


@dataclass
class Crowd:
    """Results of the requests of one kind of client, by arrival. Arrivals of the first seconds find empty seats and a
    proxy that has measured nothing: they are not counted."""

    refusals: list[float] = field(default_factory=list)
    streams: list[tuple[float, Stream]] = field(default_factory=list)

    @property
    def goodput(self) -> float:
        """Requests per second that were answered completely, with a first token in time."""
        told = [(stream.request.times.first_token, at) for at, stream in self.streams if stream.request.complete]
        inside = [first for first, at in told if first is not None and first - at <= DEADLINE]
        return sum(WARM < first <= SECONDS for first in inside) / (SECONDS - WARM)

    @property
    def waits(self) -> list[float]:
        """Waits for the first token."""
        told = [(stream.request.times.first_token, at) for at, stream in self.streams if at > WARM]
        return [first - at for first, at in told if first is not None]

    @property
    def refused(self) -> int:
        return sum(at > WARM for at in self.refusals)

    @property
    def let_in(self) -> int:
        return sum(at > WARM for at, _ in self.streams)

    @property
    def errors(self) -> int:
        """Errors of admitted requests."""
        return sum(isinstance(stream.end, Exception) for at, stream in self.streams if at > WARM)


class OverloadWorld:
    def __init__(self, tokenizer: Tokenizer, speed: float, pace: float, seats: int = 16) -> None:
        self.clock, self.draws = Clock(), random.Random(5)
        config = bare_config(model="m", first_byte_timeout=DEADLINE)
        self.proxy = VirtualProxy(config, tokenizer, self.clock)
        self.worker = VirtualWorker(self.proxy, "mixed:0", seats, speed, pace)
        self.longest_queue = 0

    def ask(self, crowd: Crowd, caller: str) -> None:
        prompt = [5] * self.draws.randint(128, 384)
        try:
            tokens = self.draws.randint(16, 112)
            params = SamplingParams(max_tokens=tokens, seed=1, temperature=0.0, ignore_eos=True)
            stream = submit(self.proxy, prompt, params, caller=caller, allowance=Allowance())
            crowd.streams.append((self.clock.now, stream))
        except Unavailable as error:
            assert error.retry_after is not None and error.retry_after >= 1.0
            crowd.refusals.append(self.clock.now)
        self.longest_queue = max(self.longest_queue, len(self.proxy.queue))

    def poisson(self, crowd: Crowd, rate: float, seconds: float, caller: str = "-") -> None:
        time = 0.0
        while (time := time + self.draws.expovariate(rate)) < seconds:
            self.clock.after(time, lambda: self.ask(crowd, caller))

    def closed_loop(self, crowd: Crowd, streams: int, seconds: float) -> None:
        """Run so many clients; each asks again when it was answered."""
        stop = self.clock.now + seconds

        def look() -> None:
            open_now = sum(stream.end is None for _, stream in crowd.streams)
            for _ in range(streams - open_now if self.clock.now < stop else 0):
                self.ask(crowd, "-")
            if self.clock.now < stop:
                self.clock.after(0.05, look)

        look()

    def run(self, seconds: float) -> None:
        self.clock.run_until(self.clock.now + seconds)


@pytest.fixture
def world(tokenizer: Tokenizer) -> Callable[..., OverloadWorld]:
    return lambda kind: OverloadWorld(tokenizer, *SPEEDS[kind])


def capacity(world: OverloadWorld) -> float:
    """Return the capacity in closed loop, as the bench measures it."""
    crowd = Crowd()
    world.closed_loop(crowd, 24, SECONDS)
    world.run(2 * SECONDS)
    return crowd.goodput


@pytest.mark.parametrize(
    ("kind", "times"),
    by_default({("seats", 1.2), ("seats", 2.0), ("prompts", 2.0)}, list(product(SPEEDS, (1.2, 2.0, 10.0)))),
)
def test_overload_costs_no_goodput(world: Callable[..., OverloadWorld], kind: str, times: float) -> None:
    most = capacity(world(kind))
    crowded, crowd = world(kind), Crowd()
    crowded.poisson(crowd, times * most, SECONDS)
    crowded.run(2 * SECONDS)
    assert crowd.goodput >= 0.9 * most
    assert crowd.errors <= 0.02 * crowd.let_in
    # The queue holds what can be served before the deadline, however many requests come.
    assert crowded.longest_queue <= 2.5 * DEADLINE * most
    queue = crowded.proxy.queue
    assert crowded.proxy.idle and not (queue.uncomputed or queue.sent or queue.costs or len(queue))
    assert (queue.tokens, queue.choices, queue.to_compute, queue.cost, queue.rate.running) == (0, 0, 0, 0.0, 0)


def test_a_crowd_that_comes_all_at_once_is_measured_and_then_refused(world: Callable[..., OverloadWorld]) -> None:
    """Only one request has been measured so far, and its figure misleads."""
    most = capacity(world("seats"))
    crowded, first, crowd = world("seats"), Crowd(), Crowd()
    crowded.ask(first, "-")
    crowded.poisson(crowd, 30 * most, SECONDS)
    crowded.run(2 * SECONDS)
    assert crowd.goodput >= 0.9 * most and crowded.proxy.idle


@pytest.mark.parametrize("kind", by_default({"seats"}, SPEEDS))
def test_a_greedy_key_takes_nothing_from_a_modest_one(world: Callable[..., OverloadWorld], kind: str) -> None:
    most = capacity(world(kind))
    crowded, modest, greedy = world(kind), Crowd(), Crowd()
    crowded.poisson(modest, 0.3 * most, SECONDS, "modest")
    crowded.poisson(greedy, 10.0 * most, SECONDS, "greedy")
    crowded.run(2 * SECONDS)
    assert modest.errors == modest.refused == 0 and max(modest.waits) <= DEADLINE
    assert modest.goodput + greedy.goodput >= 0.9 * most
    # It waits for the requests on the workers, and behind one of the other caller's, not for that caller's queue.
    assert median(modest.waits) <= 0.4 * median(greedy.waits)


def test_a_rate_that_was_measured_wrong_is_measured_again(world: Callable[..., OverloadWorld]) -> None:
    """A worker that hung leaves a rate of nearly zero behind."""
    most = capacity(world("prompts"))
    stuck, before, after = world("prompts"), Crowd(), Crowd()
    stuck.worker.speed = 15.0
    stuck.closed_loop(before, 8, WARM / 2)
    stuck.run(WARM / 2)
    stuck.worker.speed = SPEEDS["prompts"][0]
    stuck.poisson(after, 2.0 * most, SECONDS - WARM / 2)
    stuck.run(2 * SECONDS)
    assert after.goodput >= 0.8 * most
