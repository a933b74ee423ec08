# SPDX-License-Identifier: Apache-2.0
"""The division of a stream of frames into chunks, each decoded by itself after some frames before it."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FrameChunk:
    """Frames [start, end), decoded together with the `context` frames before them."""

    start: int
    end: int
    context: int

    @property
    def first(self) -> int:
        """The first frame that is decoded."""
        return self.start - self.context


def chunks(frames: int, size: int, left: int) -> Iterator[FrameChunk]:
    """Divide so many frames into chunks of `size`, the last perhaps smaller, each after at most `left` others."""
    for start in range(0, frames, size):
        yield FrameChunk(start, min(start + size, frames), min(start, left))
