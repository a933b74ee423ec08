# SPDX-License-Identifier: Apache-2.0
"""The logarithm of a spectrogram of mel bands, 100 frames a second, as Whisper and its relatives read it."""

from typing import Final

import numpy as np
import numpy.typing as npt

from pontil.runtime.stages.nodes.wav import Samples
from pontil.runtime.stages.nodes.windows import HOP, RATE, WINDOW

SECONDS: Final = 30
BANDS: Final = 80
# The mel scale of Slaney's toolbox is linear up to 1000 Hz, and logarithmic above.
BREAK_HZ: Final = 1000.0
BREAK_MEL: Final = 15.0
STEP: Final = np.log(6.4) / 27
RANGE: Final = 8.0

Floats = npt.NDArray[np.float64]


def log_mel(samples: Samples) -> Samples:
    """Return Whisper's features of at most 30 seconds, as if followed by silence: 80 bands of 3000 frames."""
    whole = np.zeros(SECONDS * RATE, np.float32)
    whole[: len(samples)] = samples
    return spectrogram(whole, FILTERS)


def spectrogram(samples: Samples, filters: Floats) -> Samples:
    """Return the bands, float32 [bands, frames], of samples, more than half a window: a frame for each whole hop."""
    padded = np.pad(samples, WINDOW // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][: len(samples) // HOP]
    power = np.abs(np.fft.rfft(frames * np.hanning(WINDOW + 1)[:-1], axis=1)) ** 2
    bands = np.log10(np.maximum(filters @ power.T, 1e-10))
    bands = np.maximum(bands, bands.max() - RANGE)
    features: Samples = ((bands + 4) / 4).astype(np.float32)
    return features


def mel_filters(bands: int) -> Floats:
    """Return the weight of each frequency in each band: triangles of equal area, each between its neighbours' tops."""
    frequencies = np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    edges = to_hertz(np.linspace(0, BREAK_MEL + np.log(RATE / 2 / BREAK_HZ) / STEP, bands + 2))
    low, top, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    triangles = np.minimum((frequencies - low) / (top - low), (high - frequencies) / (high - top))
    weights: Floats = np.maximum(triangles, 0) * 2 / (high - low)
    return weights


def to_hertz(mels: Floats) -> Floats:
    linear = mels / BREAK_MEL * BREAK_HZ
    return np.where(mels < BREAK_MEL, linear, BREAK_HZ * np.exp(STEP * (mels - BREAK_MEL)))


FILTERS: Final = mel_filters(BANDS)
