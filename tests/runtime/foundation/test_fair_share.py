# SPDX-License-Identifier: Apache-2.0
"""The share of a caller, as a proxy makes it and a message states it."""

import math

import pytest

from pontil.runtime.foundation.fair_share import LEAST_WEIGHT, MOST_WEIGHT, FairShare


def test_a_share_tells_callers_apart_and_no_names() -> None:
    one, other = FairShare.of("alice", 2.0), FairShare.of("bob", 2.0)
    assert one.caller != other.caller and "alice" not in one.caller
    assert FairShare.of("alice", 2.0) == one


@pytest.mark.parametrize("weight", [math.nan, math.inf, -math.inf, -1.0, 0.0, 1e300])
def test_no_stated_weight_is_without_bounds(weight: float) -> None:
    assert LEAST_WEIGHT <= FairShare.stated("a", weight).weight <= MOST_WEIGHT
