# SPDX-License-Identifier: Apache-2.0
"""The work that each proxy has given to a worker is counted as it changes, whatever comes and goes."""

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from effort import examples

from pontil.runtime.engine.engine import Output
from pontil.runtime.engine.sequences.sequence import FinishReason, Sequence
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.wire.messages import Submit
from pontil.runtime.worker.generate import load_gauge
from pontil.runtime.worker.generate.load_gauge import LoadGauge
from pontil.runtime.worker.generate.output_processor import OutputProcessor
from pontil.runtime.worker.process.request_table import LOOKS, GivenWork, ProxyShares, RequestTable
from pontil.runtime.worker.process.worker_request import WorkerRequest


def request(number: int, proxy: str, choices: int = 1) -> WorkerRequest:
    params = SamplingParams(max_tokens=4, seed=1, n=choices)
    submit = Submit(proxy, "w", f"r{number}", 0, [1] * 40, params.to_wire())
    return WorkerRequest(proxy, f"r{number}", 0, Sequence(f"r{number}#0", [1] * 40, params, frozenset()), submit)


@pytest.mark.parametrize("seed", range(examples(5, 200)))
def test_counts_are_those_of_the_requests_that_are_open(seed: int) -> None:
    random, shares, counted = Random(seed), ProxyShares(), dict[WorkerRequest, int]()
    left = dict[WorkerRequest, int]()
    for number in range(300):
        move = random.randrange(5)
        if move < 2:
            made = request(number, random.choice("abc"), random.randrange(1, 4))
            shares.begin(made)
            counted[made], left[made] = 0, len(made.sequence.choices)
        elif counted and move == 2:
            one = random.choice(list(counted))
            counted[one] = random.randrange(99)
            shares.count(one, counted[one])
        elif move == 3 and (some := [one for one in counted if left[one]]):
            one = random.choice(some)
            shares.choice_ended(one)
            left[one] -= 1
        elif counted:
            one = random.choice(list(counted))
            shares.end(one)
            del counted[one]
        for proxy in ("a", "b", "c", "unknown", None):
            theirs = [one for one in counted if one.proxy != proxy]
            choices = sum(left[one] for one in theirs)
            assert shares.beside(proxy) == GivenWork(len(theirs), choices, sum(counted[one] for one in theirs))
    assert shares.given.keys() == {one.proxy for one in counted}


def test_choices_that_ended_elsewhere_have_no_seat_here() -> None:
    shares = ProxyShares()
    made = request(0, "a", choices=3)
    shares.begin(made)
    shares.choices_left(made, 1)
    assert shares.beside("b") == GivenWork(1, 1, 0)
    shares.end(made)
    assert shares.beside("b") == GivenWork()


def test_a_heartbeat_looks_at_few_and_each_has_its_turn() -> None:
    shares = ProxyShares()
    made = [request(number, "a") for number in range(3 * LOOKS)]
    for one in made:
        shares.begin(one)
    seen = [list(shares.next_few()) for _ in range(4)]
    assert [len(some) for some in seen] == [LOOKS] * 4
    assert [*seen[0], *seen[1], *seen[2]] == made and seen[3] == made[:LOOKS]


def test_what_a_heartbeat_costs_does_not_grow_with_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sent to each proxy; each look walks through the blocks of a prompt."""
    links: Any = SimpleNamespace(of=lambda proxy: None, only=None, proxies=2)
    table = RequestTable("w", links)
    made = [table.add(request(number, "ab"[number % 2])) for number in range(20 * LOOKS)]
    looked = list[WorkerRequest]()

    def look(one: WorkerRequest, prefixes: object) -> int:
        looked.append(one)
        return 40

    monkeypatch.setattr(load_gauge, "uncomputed", look)
    running = [one.sequence for one in made[-3:]]
    machine: Any = SimpleNamespace(scheduler=SimpleNamespace(running=running, prefix=None))
    nothing: Any = None
    gauge = LoadGauge(machine, nothing, nothing, nothing, nothing, nothing, links, table, nothing)
    for beats in range(1, 21):
        told = gauge.others(cast(Any, SimpleNamespace(proxy="a")))
        assert told is not None and told["in_flight"] == 10 * LOOKS
        assert len(looked) <= beats * (LOOKS + len(running))
    assert {one.key for one in looked} == {one.key for one in made}, "each has its turn"


def test_a_choice_that_has_ended_takes_no_seat_of_other_proxies() -> None:
    """Its own proxy counts only those that have not."""
    links: Any = SimpleNamespace(of=lambda proxy: None, times=SimpleNamespace(ended=lambda *told: None))
    table = RequestTable("w", links)
    one, nothing = table.add(request(1, "a", 3)), cast(Any, None)
    processor = OutputProcessor(table, links, nothing, nothing, nothing, nothing)
    for finish, left in ((None, 3), (FinishReason.STOP, 2), (None, 2), (FinishReason.LENGTH, 1)):
        processor.frame_of(Output(one.sequence, 0, [1], 1, finish), 0.0)
        assert table.shares.beside("b").taken == left
    table.end(one.key)
    assert table.shares.beside("b") == GivenWork()
