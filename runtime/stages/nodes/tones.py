# SPDX-License-Identifier: Apache-2.0
"""A voice of tones: every byte of text is a few samples of a wave of its own. It needs no weights, and its sound can be
told from the text."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

RATE: Final = 24000
# The samples of one byte.
SAMPLES: Final = 8
PEAK: Final = 64
# A hash would say no more: these samples are made of the text alone.
TONES: Final = "tones-1"


class Tones:
    """A voice for tests, and for demonstrations without downloads."""

    rate = RATE

    def phonemes(self, piece: str) -> list[str]:
        """Return the words; white space has no sound."""
        return piece.split()

    def say(self, phonemes: Sequence[str]) -> bytes:
        return tones(" ".join(phonemes).encode())


def tones(data: bytes) -> bytes:
    """Return the samples of some bytes: a rising line for each, steeper the greater the byte."""
    steps = np.arange(1, SAMPLES + 1, dtype="<i2") * (PEAK // SAMPLES)
    samples: NDArray[np.int16] = np.frombuffer(data, np.uint8).astype("<i2")[:, None] * steps
    return samples.astype("<i2").tobytes()
