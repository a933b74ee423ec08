# SPDX-License-Identifier: Apache-2.0
"""The work that each proxy has given to a worker is counted as it changes, whatever comes and goes."""

from random import Random

import pytest
from effort import examples

from pontil.runtime.engine.sequence import Sequence
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.wire.messages import Submit
from pontil.runtime.worker.proxy_shares import LOOKS, GivenWork, ProxyShares
from pontil.runtime.worker.worker_request import WorkerRequest


def request(number: int, proxy: str, choices: int = 1) -> WorkerRequest:
    params = SamplingParams(max_tokens=4, seed=1, n=choices)
    submit = Submit(proxy, "w", f"r{number}", 0, [1] * 40, params.to_wire())
    return WorkerRequest(proxy, f"r{number}", 0, Sequence(f"r{number}#0", [1] * 40, params, frozenset()), submit)


@pytest.mark.parametrize("seed", range(examples(10, 200)))
def test_counts_are_those_of_the_requests_that_are_open(seed: int) -> None:
    random, shares, counted = Random(seed), ProxyShares(), dict[WorkerRequest, int]()
    for number in range(300):
        move = random.randrange(4)
        if move < 2:
            made = request(number, random.choice("abc"), random.randrange(1, 4))
            shares.begin(made)
            counted[made] = 0
        elif counted and move == 2:
            one = random.choice(list(counted))
            counted[one] = random.randrange(99)
            shares.count(one, counted[one])
        elif counted:
            one = random.choice(list(counted))
            shares.end(one)
            del counted[one]
        for proxy in ("a", "b", "c", "unknown", None):
            theirs = [one for one in counted if one.proxy != proxy]
            choices = sum(len(one.sequence.choices) for one in theirs)
            assert shares.beside(proxy) == GivenWork(len(theirs), choices, sum(counted[one] for one in theirs))
    assert shares.given.keys() == {one.proxy for one in counted}


def test_a_heartbeat_looks_at_few_and_each_has_its_turn() -> None:
    shares = ProxyShares()
    made = [request(number, "a") for number in range(3 * LOOKS)]
    for one in made:
        shares.begin(one)
    seen = [list(shares.next_few()) for _ in range(4)]
    assert [len(some) for some in seen] == [LOOKS] * 4
    assert [*seen[0], *seen[1], *seen[2]] == made and seen[3] == made[:LOOKS]
