# SPDX-License-Identifier: Apache-2.0
"""Delivery of sound as a file, whole or while it is made. Requests without a reader are always cancelled."""

import asyncio
import binascii
from collections.abc import Sequence

from sanic import HTTPResponse, Request
from sanic.response import raw

from pontil.http.fields.audio_output import Form
from pontil.http.intake.body import understood
from pontil.http.stream.reply import EventWriter, StreamFraming, route_of
from pontil.runtime.foundation.wav_header import wav_header
from pontil.runtime.proxy.requests.stream import Wakeup
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
        last_bytes, self.held = self.held, b""
        return binascii.b2a_base64(last_bytes, newline=False) if last_bytes else b""


def samples(events: Sequence[AudioEvent]) -> list[AudioDelta]:
    return [event for event in events if isinstance(event, AudioDelta)]


async def whole_sound(stream: RunStream, form: Form, rate: int) -> list[bytes]:
    """Return the base64 of a run that has ended. The event loop has its turns between the pieces."""
    pieces = SoundPieces(form)
    base64_pieces = [pieces.take(pieces.head(rate, stream.run.audio.size))]
    while deltas := samples(stream.drain_audio()):
        base64_pieces += [pieces.take(delta.data) for delta in deltas]
        await asyncio.sleep(0)
    return [*base64_pieces, pieces.finish()]


async def whole_file(stream: RunStream, form: Form, rate: int) -> bytes:
    """Return the file of a run that has ended."""
    audio_file = bytearray(SoundPieces(form).head(rate, stream.run.audio.size))
    while deltas := samples(stream.drain_audio()):
        for delta in deltas:
            audio_file += delta.data
        await asyncio.sleep(0)
    return bytes(audio_file)


TYPES = {"wav": "audio/wav", "pcm16": "audio/pcm"}
RATE = "x-pontil-sample-rate"


async def reply_sound(
    request: Request, stream: RunStream, form: Form, sample_rate: int, is_streamed: bool
) -> HTTPResponse | None:
    """Answer with the sound of a run; return None if it was streamed. Raises PontilError only while nothing has been
    sent; a stream that breaks later is cut off, so that no client takes it for a whole one."""
    understood(request)
    headers = {RATE: str(sample_rate)}
    try:
        if is_streamed:
            # Samples have no place for anything else.
            framing = StreamFraming(TYPES[form], keep_alive=b"")
            writer = EventWriter(request, lambda: headers | route_of(stream), stream.turn, framing)
            await stream_sound(writer, stream, form, sample_rate)
            return None
        await stream.all()
        await stream.settled()
        body = await whole_file(stream, form, sample_rate)
        return raw(body, content_type=TYPES[form], headers=headers | route_of(stream))
    finally:
        stream.cancel()


async def stream_sound(writer: EventWriter, stream: RunStream, form: Form, sample_rate: int) -> None:
    wakeup, pieces = Wakeup(), SoundPieces(form)
    stream.expect_whole()
    stream.listen(wakeup.wake)
    while True:
        stream.drain()
        data = b"".join(sample.data for sample in samples(stream.drain_audio()))
        if data and (writer.begun or stream.error is None):
            stream.begin()
            await writer.send(pieces.head(sample_rate) + data)
        elif stream.is_over:
            break
        else:
            await wakeup.wait()
    if stream.error is not None:
        if not writer.begun:
            raise stream.error
        writer.protocol.transport.abort()
        return
    await stream.settled()
    await writer.send(pieces.head(sample_rate), last=True)
