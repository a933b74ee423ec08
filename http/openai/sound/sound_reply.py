# SPDX-License-Identifier: Apache-2.0
"""Delivery of sound as a file, whole or while it is made. Requests without a reader are always cancelled."""

from sanic import HTTPResponse, Request
from sanic.response import raw

from pontil.http.fields.audio_output import Form
from pontil.http.intake.body import understood
from pontil.http.openai.sound.sound_pieces import SoundPieces, samples, whole_file
from pontil.http.stream.reply import EventWriter, route_of
from pontil.runtime.proxy.requests.wakeup import Wakeup
from pontil.runtime.stages.runs.stream import RunStream

TYPES = {"wav": "audio/wav", "pcm16": "audio/pcm"}
RATE = "x-pontil-sample-rate"


async def reply_sound(
    request: Request, stream: RunStream, form: Form, sample_rate: int, streamed: bool
) -> HTTPResponse | None:
    """Answer with the sound of a run; return None if it was streamed. Raises PontilError only while nothing has been
    sent; a stream that breaks later is cut off, so that no client takes it for a whole one."""
    understood(request)
    headers = {RATE: str(sample_rate)}
    try:
        if streamed:
            writer = EventWriter(request, lambda: headers | route_of(stream), stream.turn, TYPES[form])
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
