# SPDX-License-Identifier: Apache-2.0
"""The share of a caller, as a proxy makes it and a message states it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.foundation.fair_share import (
    LEAST_WEIGHT,
    MOST_WEIGHT,
    FairShare,
    ServiceClass,
    class_of,
    priority_of,
)


def test_a_share_tells_callers_apart_and_no_names() -> None:
    one, other = FairShare.of("alice", 2.0), FairShare.of("bob", 2.0)
    assert one.caller != other.caller and "alice" not in one.caller
    assert FairShare.of("alice", 2.0) == one


@pytest.mark.parametrize("weight", [math.nan, math.inf, -math.inf, -1.0, 0.0, 1e300])
def test_no_stated_weight_is_without_bounds(weight: float) -> None:
    assert LEAST_WEIGHT <= FairShare.stated("a", weight).weight <= MOST_WEIGHT


PLACES = st.tuples(st.sampled_from(ServiceClass), st.integers(-(1 << 31), (1 << 31) - 1))


@given(PLACES, PLACES)
def test_a_priority_orders_the_requests_of_one_class_and_no_others(
    one: tuple[ServiceClass, int], other: tuple[ServiceClass, int]
) -> None:
    """A request is of its class, whatever number its client states."""
    places = [each.place(priority) for each, priority in (one, other)]
    assert [(class_of(place), priority_of(place)) for place in places] == [one, other]
    assert (places[0] < places[1]) == (one < other)
