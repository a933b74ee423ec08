# SPDX-License-Identifier: Apache-2.0
"""The sizes in which images enter an encoder: whole squares of pixels, each of which becomes one row."""

import math
from dataclasses import dataclass

from pontil.runtime.errors import RequestError

# No image may be so many times as long as it is wide.
MOST_RATIO = 200
# Pixels of the largest image that is read, before it is made smaller.
MOST_SOURCE_PIXELS = 1 << 25


@dataclass(frozen=True, slots=True)
class Squares:
    """An image enters as whole squares of `side` by `side` pixels, and has so many pixels at least and at most."""

    side: int
    least_pixels: int
    most_pixels: int

    def of(self, height: int, width: int) -> tuple[int, int]:
        """Return the lines and columns of an image's squares: it keeps its shape as nearly as these allow, and costs no
        more than the largest one. They follow from its size alone. Raises RequestError."""
        if min(height, width) < 1 or max(height, width) > MOST_RATIO * min(height, width):
            raise RequestError(
                f"an image of {width} by {height} pixels cannot be read: the longer side may be at most {MOST_RATIO} "
                "times the shorter one",
                code="invalid_image",
            )
        if height * width > MOST_SOURCE_PIXELS:
            raise RequestError(
                f"an image of {width} by {height} pixels is too large: at most {MOST_SOURCE_PIXELS} pixels are read",
                code="invalid_image",
            )
        side = self.side
        lines, columns = round(height / side), round(width / side)
        if lines * columns * side**2 > self.most_pixels:
            scale = math.sqrt(height * width / self.most_pixels)
            lines, columns = (max(1, math.floor(one / scale / side)) for one in (height, width))
        elif lines * columns * side**2 < self.least_pixels:
            scale = math.sqrt(self.least_pixels / (height * width))
            lines, columns = (math.ceil(one * scale / side) for one in (height, width))
        return lines, columns
