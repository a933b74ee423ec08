# SPDX-License-Identifier: Apache-2.0
"""The rows of recordings and images that come again."""

from collections import OrderedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pontil.runtime.errors import RequestError
from pontil.runtime.stages.graph.medium import IMAGE, MEDIA, MEDIA_UNIT, SOUND, Medium
from pontil.runtime.stages.nodes.node import NodeInput, TaskInput
from pontil.runtime.stages.qwen3_omni.encoders.node import KeptRows, MediaNode

ROW = 2 * 4
"""Bytes of a row of the encoder below."""


class CountingEncoder:
    """Makes rows of the bytes of a medium, and counts how often."""

    def __init__(self) -> None:
        self.made: list[bytes] = []
        self.missing = 0

    def __call__(self, medium: Medium, data: memoryview) -> Tensor:
        self.made.append(bytes(data))
        return torch.full((medium.rows - self.missing, 1, 2), float(sum(data)))


def picture(lines: int, columns: int, size: int = 3) -> Medium:
    return Medium(IMAGE, lines * columns, size, lines, columns)


def rows_of(node: MediaNode, media: list[Medium], data: bytes, salt: str = "") -> list[float]:
    """Return the first number of each row that a task makes, by items of at most MEDIA_UNIT."""
    run = node.begin(TaskInput(data, {MEDIA: [one.to_wire() for one in media]}, cache_salt=salt))
    numbers, goes_on = list[float](), True
    while goes_on:
        pieces = run.feed(NodeInput("", {}))
        try:
            while True:
                next(pieces)
        except StopIteration as end:
            item, goes_on = end.value.values[MEDIA], end.value.goes_on
        assert len(item) <= MEDIA_UNIT
        numbers += item[:, 0, 0].tolist()
    return numbers


def test_a_medium_that_comes_again_costs_its_encoder_nothing() -> None:
    encoder = CountingEncoder()
    node = MediaNode({IMAGE: encoder, SOUND: encoder}, "media")
    media = [picture(6, 8), Medium(SOUND, 5, 4), picture(6, 8)]
    expected = [6.0] * 48 + [4.0] * 5 + [6.0] * 48
    assert rows_of(node, media, b"\1\2\3\1\1\1\1\1\2\3") == expected
    assert encoder.made == [b"\1\2\3", b"\1\1\1\1"], "the same image twice in one prompt"
    assert rows_of(node, media, b"\1\2\3\1\1\1\1\1\2\3") == expected
    assert len(encoder.made) == 2
    assert rows_of(node, [picture(8, 6)], b"\1\2\3") == [6.0] * 48
    assert len(encoder.made) == 3, "the same bytes in another form are another image"


def test_callers_who_share_no_prefixes_share_no_rows() -> None:
    encoder = CountingEncoder()
    node = MediaNode({IMAGE: encoder}, "media")
    for salt in ("anna", "bob", "anna", "bob"):
        rows_of(node, [picture(1, 2)], b"\1\2\3", salt)
    assert len(encoder.made) == 2


def test_rows_that_do_not_fit_their_positions_are_not_kept() -> None:
    encoder = CountingEncoder()
    node = MediaNode({IMAGE: encoder}, "media")
    encoder.missing = 1
    with pytest.raises(RequestError, match="a medium has 1 rows, and 2 positions"):
        rows_of(node, [picture(1, 2)], b"\1\2\3")
    encoder.missing = 0
    assert rows_of(node, [picture(1, 2)], b"\1\2\3") == [6.0] * 2


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), max_size=40), st.integers(0, 12))
def test_the_media_that_were_asked_for_last_are_kept(asked: list[tuple[int, int]], most: int) -> None:
    """Beside a model of it: whatever fits, the last ones first, and never more bytes than are allowed."""
    kept, model = KeptRows(most * ROW), OrderedDict[bytes, int]()
    for number, rows in asked:
        key = bytes([number, rows])
        found = kept.find(key)
        assert (found is not None) == (key in model)
        if found is None:
            kept.keep(key, torch.zeros(rows, 1, 2))
            if rows > most:
                continue
            model[key] = rows
        model.move_to_end(key)
        while sum(model.values()) > most:
            model.popitem(last=False)
        assert list(kept.by_key) == list(model) and kept.bytes == sum(model.values()) * ROW <= most * ROW
