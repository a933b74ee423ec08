# SPDX-License-Identifier: Apache-2.0
"""The answer of a run to its reader: the text of its first stage, and the audio of its last."""

from collections.abc import Callable
from functools import partial

from pontil.runtime.errors import PontilError
from pontil.runtime.proxy.requests.answer import ChoiceEvent, Finished, no_listener
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.requests.stream import MessageTurn, Stream, Wakeup, wake_at_end
from pontil.runtime.stages.runs.audio_mailbox import AudioEvent
from pontil.runtime.stages.runs.run import Run


class RunStream(Stream):
    """The merged events of a run: `drain` returns those of the text, `drain_audio` those of the audio. Listeners hear
    of both. It is over once every stage has ended, and fails with the first stage that does."""

    def __init__(self, run: Run, cancel: Callable[[Run], None], turn: MessageTurn) -> None:
        super().__init__([run.first], lambda request: cancel(run), turn)
        self.run = run

    @property
    def billed(self) -> tuple[Request, ...]:
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
        # Stages that begin later are counted then: a client may leave before.
        self.expect_whole()
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
