# SPDX-License-Identifier: Apache-2.0
"""The head of a WAV file, written and recognised."""

import struct

PCM = 1
# Sizes that no file has: the head of a stream states them.
UNKNOWN = 0xFFFFFFFF
HEADER_BYTES = 44


def wav_header(rate: int, size: int | None = None) -> bytes:
    """Return the header of a WAV file of one channel of 16-bit samples, `size` bytes of them; None: not known yet, as
    in a stream."""
    whole, size = (UNKNOWN, UNKNOWN) if size is None else (HEADER_BYTES - 8 + size, size)
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, PCM, 1, rate, 2 * rate, 2, 16)
    return struct.pack("<4sI4s", b"RIFF", whole, b"WAVE") + form + struct.pack("<4sI", b"data", size)


def is_wav(data: bytes) -> bool:
    """Return whether a file begins as a WAV file does."""
    return data[:4] == b"RIFF" and data[8:12] == b"WAVE"
