# SPDX-License-Identifier: Apache-2.0
"""The frames of a sequence's accepted ids as items of a stream."""

from collections.abc import Sequence

import numpy as np

from pontil.runtime.stages.streams.edge_writer import EdgeWriter


class FrameStream:
    """An Outflow. Each frame is one item, int32 [1, codes]. An id among the `ends` makes none, nor does an id that was
    sampled last because of a limit: a frame counts once its id is fed back. So a frame's item follows with the next
    id."""

    def __init__(self, writer: EdgeWriter, walk: str, ends: frozenset[int]) -> None:
        self.writer, self.walk, self.ends = writer, walk, ends
        self.taken = 0
        self.waiting: Sequence[int] | None = None

    @property
    def is_full(self) -> bool:
        return self.writer.is_full

    def take(self, index: int, ids: Sequence[int], frames: Sequence[Sequence[int]] = ()) -> None:
        """Take the frames of the ids from `index` on; those that were taken before are left out."""
        for place in range(max(0, self.taken - index), len(ids)):
            self.taken += 1
            if self.waiting is not None:
                self.writer.put(self.walk, np.asarray([self.waiting], dtype=np.int32))
            self.waiting = None if ids[place] in self.ends else frames[place]

    def finish(self) -> None:
        self.waiting = None
        self.writer.finish()
