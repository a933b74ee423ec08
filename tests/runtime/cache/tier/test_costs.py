# SPDX-License-Identifier: Apache-2.0
"""A prefix is read only where that is expected to be sooner than computing it."""

from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.cache.tier.costs import SHARE, TierCosts

BLOCKS = st.lists(st.tuples(st.sampled_from(["memory", "disk"]), st.integers(1, 16)), max_size=30)
TIME = st.floats(1e-7, 10)


def costs(per_token: float = 1e-3, base: float = 1e-3, memory: float = 1e-4, disk: float = 1e-3) -> TierCosts:
    return TierCosts(per_token, base, {"memory": memory, "disk": disk})


@given(BLOCKS, TIME, TIME, TIME, TIME, TIME)
def test_as_many_blocks_are_read_as_save_most(
    blocks: list[tuple[str, int]], per_token: float, base: float, memory: float, disk: float, waiting: float
) -> None:
    known = costs(per_token, base, memory, disk)

    def saved(count: int) -> float:
        read = waiting + known.seconds([tier for tier, _ in blocks[:count]])
        return SHARE * per_token * sum(tokens for _, tokens in blocks[:count]) - read

    count = known.worth(blocks, waiting)
    assert 0 <= count <= len(blocks) and (count == 0 or saved(count) > 0)
    assert all(saved(other) <= max(0.0, saved(count)) + 1e-9 for other in range(1, len(blocks) + 1))


@given(TIME, TIME, TIME)
def test_the_fewest_tokens_are_those_that_pay(per_token: float, base: float, disk: float) -> None:
    known = costs(per_token, base, disk=disk)
    least = known.least("disk", 16)
    if least is None:
        assert known.worth([("disk", 16)] * 1000) == 0
    elif least < 16_000:
        assert known.worth([("disk", 16)] * (least // 16 + 1)) > 0
        assert known.worth([("disk", 16)] * (least // 16 - 1)) == 0


def test_a_tier_that_became_slow_is_left_and_tried_again() -> None:
    known, blocks = costs(), [("disk", 16)] * 10
    assert known.worth(blocks) == 10
    for _ in range(60):
        known.observe({"disk": (1.0, 1)})
    assert known.worth(blocks) == 0 and known.worth([("memory", 16)] * 10) == 10
    refusals = 0
    while not known.worth(blocks):
        known.refused(["disk"])
        refusals += 1
    assert 10 < refusals < 1000


def test_one_slow_read_counts_for_little() -> None:
    known = costs()
    known.observe({"disk": (3600.0, 1)})
    assert known.worth([("disk", 16)] * 10) == 10
