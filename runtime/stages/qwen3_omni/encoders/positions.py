# SPDX-License-Identifier: Apache-2.0
"""The rotary positions of a prompt with images: each position has three, of time, line and column (Wang et al., 2024).

Text and sound have three equal ones, each one more than those before. All rows of an image have one time, and lines and
columns from there on; what follows begins behind the largest of these.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pontil.gpu_ops.rotary import rotary_frequencies
from pontil.runtime.models.layers.rotary import Angles

AXES = 3


@dataclass(frozen=True, slots=True)
class ImagePlace:
    """The place of an image in a prompt: the first of its rows, and the lines and columns that they make."""

    start: int
    lines: int
    columns: int

    @property
    def rows(self) -> int:
        return self.lines * self.columns


def rotary_positions(length: int, images: Sequence[ImagePlace]) -> NDArray[np.int64]:
    """Return the positions [3, length] of a prompt with these images, in order."""
    made = np.empty((AXES, length), np.int64)
    place = position = 0
    for image in images:
        made[:, place : image.start] = np.arange(position, position + image.start - place)
        position += image.start - place
        place = image.start + image.rows
        made[0, image.start : place] = position
        made[1, image.start : place] = position + np.repeat(np.arange(image.lines), image.columns)
        made[2, image.start : place] = position + np.tile(np.arange(image.columns), image.lines)
        position += max(image.lines, image.columns)
    made[:, place:] = np.arange(position, position + length - place)
    return made


def answer_shift(images: Sequence[ImagePlace]) -> int:
    """Return what the rotary positions of an answer are more than its places: never more than 0, as an image has more
    rows than lines or columns."""
    return sum(max(image.lines, image.columns) - image.rows for image in images)


class ThreeWayRotary:
    """Angles of positions of three parts. Of the frequencies, in turns of three, the second is turned by the line and
    the third by the column, as far as `sections` say (time, line, column); all others by the time."""

    def __init__(self, rotated: int, theta: float, sections: Sequence[int]) -> None:
        self.frequencies = rotary_frequencies(rotated, theta)
        self.axes = torch.zeros(rotated // 2, dtype=torch.int64)
        for axis in range(1, AXES):
            self.axes[axis : AXES * sections[axis] : AXES] = axis

    def __call__(self, positions: Tensor) -> Angles:
        """Return cosines and sines, each float32 [rows, rotated / 2], of int64 positions [3, rows]."""
        angles = positions[self.axes].T.float() * self.frequencies
        return angles.cos(), angles.sin()


class MediaAngles:
    """The angles of a sequence whose prompt of `length` positions has these images, and of the answer behind it."""

    def __init__(self, rotary: ThreeWayRotary, length: int = 0, images: Sequence[ImagePlace] = ()) -> None:
        self.rotary, self.length = rotary, length
        self.positions = torch.from_numpy(rotary_positions(length, images))
        self.shift = answer_shift(images)

    def __call__(self, start: int, count: int) -> Angles:
        behind = max(start, self.length)
        answer = torch.arange(behind, max(behind, start + count)) + self.shift
        known = self.positions[:, start : start + count]
        return self.rotary(torch.cat((known, answer.expand(AXES, -1)), dim=1))

    @property
    def plain(self) -> "MediaAngles":
        return MediaAngles(self.rotary)
