# SPDX-License-Identifier: Apache-2.0
"""The codes among the ids of an answer, whatever the parts in which these come."""

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pontil.runtime.stages.streams.code_stream import CodeStream
from pontil.runtime.stages.streams.edge_writer import EdgeWriter

CODES = range(20, 27)


class KeptItems:
    """Stands for the writer of a stream: keeps its items."""

    is_full = False

    def __init__(self) -> None:
        self.items: list[int] = []
        self.is_finished = False

    def put(self, walk: str, array: NDArray[Any]) -> None:
        assert (walk, array.shape) == ("decode_text", (1,)) and array.dtype == "int32" and not self.is_finished
        self.items.append(int(array[0]))

    def finish(self) -> None:
        self.is_finished = True


@given(st.lists(st.integers(15, 30), max_size=20), st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20))))
def test_each_code_is_one_item_in_order(ids: list[int], parts: list[tuple[int, int]]) -> None:
    kept = KeptItems()
    stream = CodeStream(cast(EdgeWriter, kept), "decode_text", CODES)
    for start, end in sorted(parts):
        # Parts overlap, and leave no gap: those of an attempt that goes on begin with what is known.
        stream.take(min(start, stream.taken), ids[min(start, stream.taken) : end])
    stream.take(0, ids)
    stream.finish()
    assert kept.items == [token - 20 for token in ids if token in CODES] and kept.is_finished
