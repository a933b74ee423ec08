# SPDX-License-Identifier: Apache-2.0
"""Tiles as plain numbers, on their way from a driver to its followers (rule H2)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.gpu_ops.kernels.tile import TileSpan
from pontil.runtime.engine.tile_plan import TilePlan, tile_plan
from pontil.runtime.wire.codec import decode, encode
from pontil.runtime.wire.messages import RankPlan

numbers = st.lists(st.integers(0, 2**31 - 1), max_size=20)
spans = st.lists(st.builds(TileSpan, st.integers(0, 2**20), st.integers(1, 512), numbers), max_size=5)
plans = st.builds(TilePlan, st.booleans(), numbers, spans, numbers, numbers, numbers)


@given(plans)
def test_a_follower_gets_the_numbers_that_the_driver_has(plan: TilePlan) -> None:
    sent = decode(encode(RankPlan("driver", "follower", 1, tiles=[plan.to_wire()])))
    assert isinstance(sent, RankPlan)
    found = tile_plan(sent.tiles[0])
    assert found.generated is plan.generated and found.positions == plan.positions
    assert [list(span.blocks) for span in found.spans] == [list(span.blocks) for span in plan.spans]
    for name in ("ids", "rows", "recorded", "drawn"):
        assert list(getattr(found, name)) == list(getattr(plan, name))


@pytest.mark.parametrize(
    "broken", [{}, {"spans": b"\0" * 8}, {"ids": "text"}, {"rows": b"\0\0\0"}, {"drawn": None}, {"spans": b"\0" * 13}]
)
def test_what_is_no_plan_is_refused(broken: dict[str, object]) -> None:
    whole = TilePlan(False, [1], [TileSpan(0, 1, [1])], [0], [], [0]).to_wire()
    with pytest.raises((KeyError, TypeError, ValueError)):
        tile_plan(broken and whole | broken)
