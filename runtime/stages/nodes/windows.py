# SPDX-License-Identifier: Apache-2.0
"""The windows of a spectrogram as Whisper and its relatives read it, for those too who count its frames without making
them."""

from typing import Final

# Samples a second, of a window, and from one window to the next.
RATE: Final = 16000
WINDOW: Final = 400
HOP: Final = 160
