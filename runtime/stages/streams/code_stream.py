# SPDX-License-Identifier: Apache-2.0
"""The codes among a sequence's accepted ids as items of a stream."""

from collections.abc import Sequence

import numpy as np

from pontil.runtime.stages.streams.edge_writer import EdgeWriter


class CodeStream:
    """An Outflow. Each id among the `codes` is one item, int32 [1], counted from the first of them. Other ids make
    none."""

    def __init__(self, writer: EdgeWriter, walk: str, codes: range) -> None:
        self.writer, self.walk, self.codes = writer, walk, codes
        self.taken = 0

    @property
    def is_full(self) -> bool:
        return self.writer.is_full

    def take(self, index: int, ids: Sequence[int], frames: Sequence[Sequence[int]] = ()) -> None:
        """Take the ids from `index` on; those that were taken before are left out."""
        new = ids[max(0, self.taken - index) :]
        self.taken += len(new)
        for token in new:
            if token in self.codes:
                self.writer.put(self.walk, np.asarray([token - self.codes.start], dtype=np.int32))

    def finish(self) -> None:
        self.writer.finish()
