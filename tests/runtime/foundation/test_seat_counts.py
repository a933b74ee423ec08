# SPDX-License-Identifier: Apache-2.0
"""The counts of a worker's seats by caller, and what they cost where many callers wait."""

from random import Random

import pytest

from pontil.runtime.foundation.fair_share import FairShare
from pontil.runtime.foundation.seat_counts import SeatCounts


@pytest.mark.parametrize("seed", range(20))
def test_claims_and_parts_are_those_of_all_that_is_held(seed: int) -> None:
    random = Random(seed)
    counts, weights = SeatCounts(), {name: random.choice([0.5, 1.0, 4.0]) for name in "abcdef"}
    shares = [FairShare(name, weight) for name, weight in weights.items()]
    for _ in range(200):
        share = random.choice(shares)
        counts.add(share, random.randint(-counts.held.get(share.caller, 0), 4))
        for asking in shares:
            others = sum(weights[name] for name in counts.held if name != asking.caller)
            assert counts.has_claim(asking) == any(counts.yields(name, asking) for name in counts.held)
            assert counts.part(asking, 64) == max(1, int(64 * asking.weight / (others + asking.weight)))
        assert counts.taken == sum(counts.held.values())


def test_a_claim_costs_no_look_at_every_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand callers that wait ask at every message of a worker whose seats hundreds hold."""
    counts, looks = SeatCounts(), list[str]()
    for number in range(256):
        counts.add(FairShare(f"holds{number}"))
    look = SeatCounts.after_giving

    def counted(own: SeatCounts, caller: str) -> float:
        looks.append(caller)
        return look(own, caller)

    monkeypatch.setattr(SeatCounts, "after_giving", counted)
    assert not any(counts.claimable(FairShare(f"waits{number}"), 256) for number in range(1000))
    assert len(looks) == 256


def test_no_more_is_given_back_than_was_taken() -> None:
    counts = SeatCounts()
    counts.add(FairShare("a"), 2)
    with pytest.raises(AssertionError, match="more seats"):
        counts.add(FairShare("a"), -3)
