# SPDX-License-Identifier: Apache-2.0
"""The answer of a run to its reader: the text of its first stage, and the audio of its last."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pontil.runtime.errors import PontilError
from pontil.runtime.proxy.requests.stream import ChoiceEvent, Finished, MessageTurn, Stream, no_listener, wake_at_end
from pontil.runtime.proxy.requests.whole_answer import WholeAnswer
from pontil.runtime.proxy.wakeup import Wakeup

if TYPE_CHECKING:
    from pontil.runtime.proxy.requests.request import Request
    from pontil.runtime.stages.runs.run import Run


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


class RunStream(Stream):
    """The merged events of a run: `drain` returns those of the text, `drain_audio` those of the audio. Listeners hear
    of both. It is over once every stage has ended, and fails with the first stage that does."""

    def __init__(self, run: "Run", cancel: Callable[["Run"], None], turn: MessageTurn) -> None:
        super().__init__([run.first], lambda request: cancel(run), turn)
        self.run = run

    @property
    def billed(self) -> tuple["Request", ...]:
        return tuple(self.run.requests.values())

    def listen(self, listener: Callable[[], None]) -> None:
        super().listen(listener)
        self.run.audio.listener = listener

    def drain(self) -> list[ChoiceEvent]:
        taken = super().drain()
        if isinstance(self.run.audio.end, PontilError):
            self.error = self.run.audio.end
        return taken

    def drain_audio(self) -> list[AudioEvent]:
        """Remove and return events of the audio since the last call; there may be more."""
        return self.run.audio.drain()

    @property
    def has_more(self) -> bool:
        return bool(self.run.audio.pending)

    @property
    def is_over(self) -> bool:
        return self.error is not None or self.end is not None and not self.open and self.run.audio.is_drained

    async def all(self) -> list[ChoiceEvent]:
        """Wait for the end of the run and return the events of its text; `drain_audio` has the audio. Raises the error
        of a stage that failed."""
        wakeup = Wakeup()
        self.expect_whole(WholeAnswer(self.run.unfinished))
        self.run.audio.listener = partial(wake_at_end, self.run.audio, wakeup)
        while self.end is None:
            await wakeup.wait()
        said = self.drain()
        if self.error is not None:
            raise self.error
        return said

    def cancel(self) -> None:
        super().cancel()
        self.run.audio.listener = no_listener

    @property
    def end(self) -> Finished | PontilError | None:
        return self.run.audio.end
