# SPDX-License-Identifier: Apache-2.0
"""Tiles as plain numbers, on their way from a driver to its followers (rule H2)."""

from random import Random
from typing import Any

import pytest
import torch
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from pontil.gpu_ops.kernels.tile import TileSpan
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.engine.tiles.plan_tables import MOST_TABLES, PlanReader, PlanWriter
from pontil.runtime.errors import TransferError
from pontil.runtime.models.media_rows import MediaRows
from pontil.runtime.wire.codec import decode, encode
from pontil.runtime.wire.messages import RankPlan

numbers = st.lists(st.integers(0, 2**31 - 1), max_size=20)
ints = st.integers(0, 2**20)
spans = st.lists(st.builds(TileSpan, ints, st.integers(1, 512), numbers, ints, ints, ints), max_size=5)
plans = st.builds(TilePlan, st.booleans(), numbers, spans, numbers, numbers, numbers)


def sent(fields: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the fields of a tile as a follower gets them, and the bytes of their message."""
    frame = encode(RankPlan("driver", "", 1, tiles=[fields]))
    arrived = decode(frame)
    assert isinstance(arrived, RankPlan)
    return arrived.tiles[0], len(frame)


def same(found: TilePlan, plan: TilePlan) -> None:
    assert found.generated is plan.generated and found.positions == plan.positions
    assert [list(span.blocks) for span in found.spans] == [list(span.blocks) for span in plan.spans]
    about = [[(span.adapter, span.drafts, span.adapted_from) for span in one.spans] for one in (found, plan)]
    assert about[0] == about[1]
    for name in ("ids", "rows", "recorded", "drawn"):
        assert list(getattr(found, name)) == list(getattr(plan, name))
    assert (found.embeddings is None) == (plan.embeddings is None)
    if found.embeddings is not None and plan.embeddings is not None:
        assert torch.equal(found.embeddings, plan.embeddings)


@given(st.lists(plans, max_size=4))
def test_a_follower_gets_the_numbers_that_the_driver_has(some: list[TilePlan]) -> None:
    writer, reader = PlanWriter(), PlanReader()
    for plan in some:
        same(reader.read(sent(writer.write(plan))[0]), plan)


def test_rows_that_are_no_tokens_come_as_they_are() -> None:
    rows = torch.randn(3, 8)
    plan = TilePlan(False, [0] * 3, [TileSpan(0, 3, [4], drafts=2)], [2], [], [0], rows)
    fields = PlanWriter().write(plan)
    same(PlanReader().read(sent(fields)[0]), plan)
    fields["embeddings"] += b"\0"
    with pytest.raises(TransferError, match="cannot be read"):
        PlanReader().read(fields)


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_rows_of_images_come_with_their_angles(layers: int) -> None:
    media = MediaRows((torch.randn(3, 4), torch.randn(3, 4)), torch.randn(layers, 3, 8))
    plan = TilePlan(False, [0] * 3, [TileSpan(0, 3, [4])], [2], [], [0], torch.randn(3, 8), media=media)
    fields = PlanWriter().write(plan)
    found = PlanReader().read(sent(fields)[0])
    same(found, plan)
    assert found.media is not None and torch.equal(found.media.deep, media.deep)
    assert all(map(torch.equal, found.media.angles, media.angles))
    fields["deep"] += b"1234"
    with pytest.raises(TransferError, match="cannot be read"):
        PlanReader().read(fields)


def decoding(tables: list[list[int]], position: int = 0) -> TilePlan:
    rows = list(range(len(tables)))
    return TilePlan(True, [5] * len(tables), [TileSpan(position, 1, one) for one in tables], rows, [], rows)


@pytest.mark.parametrize("seed", range(examples(10, 200)))
def test_whatever_becomes_of_tables_a_follower_has_them(seed: int) -> None:
    """Tables grow, lose their end, have a block replaced, share beginnings, end, and come back after others."""
    random, writer, reader = Random(seed), PlanWriter(), PlanReader()
    tables = [[random.randrange(1, 99) for _ in range(random.randrange(40))] for _ in range(12)]
    for _ in range(200):
        for place in random.sample(range(len(tables)), 4):
            one = tables[place]
            change = random.randrange(6)
            if change == 0 and one:
                one[random.randrange(len(one))] = random.randrange(1, 99)
            elif change == 1:
                del one[random.randrange(len(one) + 1) :]
            elif change == 2:
                tables[place] = list(random.choice(tables))
            elif change == 3:
                tables[place] = []
            else:
                one.extend(random.randrange(1, 99) for _ in range(random.randrange(3)))
        plan = decoding(random.sample(tables, random.randrange(1, len(tables))))
        same(reader.read(sent(writer.write(plan))[0]), plan)


def test_more_tables_than_a_follower_keeps_are_sent_again() -> None:
    writer, reader = PlanWriter(), PlanReader()
    tables = [[place, place + 1] for place in range(MOST_TABLES + 100)]
    for first in [*range(0, len(tables), 300), 0, 900]:
        plan = decoding(tables[first : first + 300])
        same(reader.read(sent(writer.write(plan))[0]), plan)
    assert len(writer.told) == len(reader.tables) == MOST_TABLES


def test_a_step_of_many_long_sequences_is_small() -> None:
    writer, reader = PlanWriter(), PlanReader()
    tables = [list(range(place, place + 6250)) for place in range(256)]
    sizes = []
    for step in range(5):
        for place, one in enumerate(tables):
            if (step + place) % 16 == 0:
                one.append(7)
        plan = decoding(tables, 100_000 + step)
        fields, size = sent(writer.write(plan))
        sizes.append(size)
        same(reader.read(fields), plan)
    assert sizes[0] > 6_000_000, "at first all of it"
    assert max(sizes[1:]) <= 100_000


def test_a_lost_doubled_or_misordered_plan_is_an_error() -> None:
    writer, reader = PlanWriter(), PlanReader()
    first, second, third = (writer.write(decoding([[1, 2, place]])) for place in range(3))
    reader.read(first)
    for wrong in (first, third, second | {"number": 5}):
        with pytest.raises(TransferError, match="came after tile 1"):
            reader.read(wrong)
    reader.read(second)
    with pytest.raises(TransferError, match="came after tile 0"):
        PlanReader().read(third)


@pytest.mark.parametrize(
    "broken",
    [
        {}, {"spans": b"\0" * 8}, {"ids": "text"}, {"rows": b"\0\0\0"}, {"drawn": None}, {"spans": b"\0" * 20},
        {"blocks": b""}, {"blocks": b"\0" * 12},
    ],
)  # fmt: skip
def test_what_is_no_plan_is_refused(broken: dict[str, object]) -> None:
    whole = PlanWriter().write(TilePlan(False, [1], [TileSpan(0, 1, [1])], [0], [], [0]))
    with pytest.raises(TransferError):
        PlanReader().read(broken and whole | broken)


def test_a_table_that_would_keep_what_it_has_not_is_refused() -> None:
    table = [1, 2, 3]
    writer = PlanWriter()
    writer.write(decoding([table]))
    again = writer.write(decoding([table])) | {"number": 1}
    with pytest.raises(TransferError, match="cannot be read"):
        PlanReader().read(again)
