# SPDX-License-Identifier: Apache-2.0
"""The audio of a run on its way to its reader."""

from collections.abc import Callable
from dataclasses import dataclass

from pontil.runtime.errors import PontilError
from pontil.runtime.proxy.requests.answer import Finished, no_listener

# Bytes that one call of a reader takes, which it copies in one turn of the event loop.
MOST_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class AudioDelta:
    """New audio: PCM of 16 bits, little-endian, one channel, at `sample_rate`. `index` is the number of bytes before
    it."""

    data: bytes
    index: int
    sample_rate: int


@dataclass(frozen=True, slots=True)
class AudioEnded:
    """The audio is complete: so many bytes in all."""

    size: int


AudioEvent = AudioDelta | AudioEnded


class AudioMailbox:
    """A run's queue of audio from the workers to its reader, within one event loop.

    What the reader has not taken is merged into one piece, so a slow reader holds at most one answer's audio, which
    `limit` bounds, and the writer never blocks. `complete` when the audio is, `close` when the run ends: the rest is
    still delivered.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.pending = bytearray()
        self.size = 0
        self.sample_rate = 0
        self.ended = self.told = False
        self.end: Finished | PontilError | None = None
        self.listener: Callable[[], None] = no_listener

    def has_room(self, more: int) -> bool:
        return self.size + more <= self.limit

    def put(self, data: bytes, sample_rate: int, last: bool = False) -> None:
        self.pending += data
        self.size += len(data)
        self.sample_rate, self.ended = sample_rate, last
        self.listener()

    def close(self, end: Finished | PontilError) -> None:
        """End the run; only the first call has an effect."""
        if self.end is None:
            self.end = end
            self.listener()

    def drain(self) -> list[AudioEvent]:
        """Remove and return the events since the last call, at most MOST_AT_ONCE bytes."""
        said: list[AudioEvent] = []
        if self.pending:
            index = self.size - len(self.pending)
            said.append(AudioDelta(bytes(self.pending[:MOST_AT_ONCE]), index, self.sample_rate))
            del self.pending[:MOST_AT_ONCE]
        if self.ended and not self.told and not self.pending:
            self.told = True
            said.append(AudioEnded(self.size))
        return said

    @property
    def is_drained(self) -> bool:
        return not self.pending and self.told == self.ended
