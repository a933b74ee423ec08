# SPDX-License-Identifier: Apache-2.0
"""The frames of a sequence's accepted ids as items of a stream."""

from collections.abc import Sequence

import numpy as np

from pontil.runtime.worker.stages.edge_writer import EdgeWriter


class FrameStream:
    """An Outflow. Each frame is one item, int32 [1, codes], but that of an id among the `ends`, which says only that
    the answer ends."""

    def __init__(self, writer: EdgeWriter, walk: str, ends: frozenset[int]) -> None:
        self.writer, self.walk, self.ends = writer, walk, ends
        self.taken = 0

    @property
    def is_full(self) -> bool:
        return self.writer.is_full

    def take(self, index: int, ids: Sequence[int], frames: Sequence[Sequence[int]] = ()) -> None:
        """Take the frames of the ids from `index` on; those that were taken before are left out."""
        for place in range(max(0, self.taken - index), len(ids)):
            self.taken += 1
            if ids[place] not in self.ends:
                self.writer.write(self.walk, np.asarray([frames[place]], dtype=np.int32))

    def finish(self) -> None:
        self.writer.finish()
