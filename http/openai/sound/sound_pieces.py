# SPDX-License-Identifier: Apache-2.0
"""Sound on its way to a client: samples as base64 in pieces, with the head of a WAV file before them where it asked for
one."""

import asyncio
import binascii
from collections.abc import Sequence

from pontil.http.fields.audio_output import Form
from pontil.runtime.foundation.wav_header import wav_header
from pontil.runtime.stages.runs.audio_mailbox import AudioDelta, AudioEvent
from pontil.runtime.stages.runs.stream import RunStream

# Bytes that become whole groups of base64, so that pieces can be decoded one by one or joined, and whole samples.
GROUP = 6


class SoundPieces:
    """The encoder of one answer's sound. What does not fill a group waits for the next piece."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.held = b""
        self.begun = False

    def head(self, rate: int, size: int | None = None) -> bytes:
        """Return what comes before the samples: once, and nothing for bare samples."""
        if self.begun:
            return b""
        self.begun = True
        return wav_header(rate, size) if self.form == "wav" else b""

    def take(self, data: bytes) -> bytes:
        """Return more base64."""
        data = self.held + data if self.held else data
        whole = len(data) - len(data) % GROUP
        self.held = data[whole:]
        return binascii.b2a_base64(data[:whole], newline=False) if whole else b""

    def finish(self) -> bytes:
        """Return the rest of the base64."""
        rest, self.held = self.held, b""
        return binascii.b2a_base64(rest, newline=False) if rest else b""


def samples(said: Sequence[AudioEvent]) -> list[AudioDelta]:
    return [one for one in said if isinstance(one, AudioDelta)]


async def whole_sound(stream: RunStream, form: Form, rate: int) -> list[bytes]:
    """Return the base64 of a run that has ended. The event loop has its turns between the pieces."""
    pieces = SoundPieces(form)
    coded = [pieces.take(pieces.head(rate, stream.run.audio.size))]
    while found := samples(stream.drain_audio()):
        coded += [pieces.take(one.data) for one in found]
        await asyncio.sleep(0)
    return [*coded, pieces.finish()]


async def whole_file(stream: RunStream, form: Form, rate: int) -> bytes:
    """Return the file of a run that has ended."""
    made = bytearray(SoundPieces(form).head(rate, stream.run.audio.size))
    while found := samples(stream.drain_audio()):
        for one in found:
            made += one.data
        await asyncio.sleep(0)
    return bytes(made)
