# SPDX-License-Identifier: Apache-2.0
"""The first line of an answer of the process that decodes recordings and images. The proxy reads it without what
decodes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MediaAnswer:
    """The line before the bytes of a medium, as its encoder is given them: float32 samples, 16,000 a second, or the
    pixels of whole squares in so many `lines` and `columns`. With `refused` there are none, and why."""

    lines: int = 0
    columns: int = 0
    refused: str | None = None
