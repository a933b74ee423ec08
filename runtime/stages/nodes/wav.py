# SPDX-License-Identifier: Apache-2.0
"""WAV files and raw samples: reading what a client sent, within limits, and writing what a client gets."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from pontil.runtime.errors import RequestError
from pontil.runtime.foundation.wav_header import is_wav, wav_header
from pontil.runtime.stages.nodes.libraries import library

Samples = npt.NDArray[np.float32]

MOST_BYTES: Final = 25 << 20
MOST_SECONDS: Final = 300
RATES: Final = range(8000, 192001)
MOST_CHANNELS: Final = 8
MOST_CHUNKS: Final = 64
# Programs that write to a pipe cannot know the size: they state one like these.
UNKNOWN_SIZE: Final = 0x7FFFF000
PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
CODECS = {2: "ADPCM", 6: "A-law", 7: "µ-law", 17: "ADPCM", 85: "MP3"}
SAMPLE_TYPES = {
    (PCM, 8): "u1",
    (PCM, 16): "<i2",
    (PCM, 24): "u1",
    (PCM, 32): "<i4",
    (FLOAT, 32): "<f4",
    (FLOAT, 64): "<f8",
}
CONVERT = "convert it first, for example with `ffmpeg -i INPUT -ar 16000 -ac 1 -c:a pcm_s16le OUTPUT.wav`"
MAGICS = (
    (b"ID3", "an MP3 file"),
    (b"\xff\xfb", "an MP3 file"),
    (b"\xff\xf3", "an MP3 file"),
    (b"OggS", "an Ogg file"),
    (b"fLaC", "a FLAC file"),
    (b"\x1aE\xdf\xa3", "a WebM file"),
    (b"RF64", "an RF64 file"),
    (b"FORM", "an AIFF file"),
)


@dataclass(frozen=True, slots=True)
class Sound:
    """One channel of audio: samples from -1 to 1, `rate` of them a second."""

    samples: Samples
    rate: int

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate


@dataclass(frozen=True, slots=True)
class WavFormat:
    """The fields of a WAV file's `fmt ` chunk that reading needs."""

    kind: int
    channels: int
    rate: int
    bits: int

    @property
    def frame_bytes(self) -> int:
        return self.channels * self.bits // 8


def refused(message: str, status: int = 400) -> RequestError:
    return RequestError(message, status=status, code="invalid_audio")


def read_wav(data: bytes) -> Sound:
    """Read a WAV file; several channels become their mean. Raises RequestError for what is none, or is over a limit."""
    check_bytes(data)
    if not is_wav(data):
        raise refused(f"the audio is {seems(data)}, not a WAV file: {CONVERT}")
    form = None
    for name, body in chunks(data):
        if name == b"fmt ":
            form = read_format(body)
        elif name == b"data":
            if form is None:
                raise refused("the WAV file has its samples before the chunk `fmt ` that describes them: write it anew")
            return to_sound(body, form)
    raise refused("the WAV file has no chunk `data`, so no samples: write it anew")


def read_pcm16(data: bytes, rate: int) -> Sound:
    """Read one channel of bare 16-bit samples, the lowest byte first. Raises RequestError."""
    check_bytes(data)
    return to_sound(memoryview(data), WavFormat(PCM, 1, rate, 16))


def check_bytes(data: bytes) -> None:
    if len(data) > MOST_BYTES:
        raise refused(
            f"the audio has {len(data)} bytes, at most {MOST_BYTES} are read: send a shorter recording, "
            "or one with a lower sample rate",
            413,
        )


def seems(data: bytes) -> str:
    """Words for what the bytes look like."""
    if not data:
        return "empty"
    if data[4:8] == b"ftyp":
        return "an MP4 file"
    return next((words for magic, words in MAGICS if data.startswith(magic)), "something else")


def chunks(data: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the name and the body of each chunk up to the samples. The file's own size field is not needed."""
    view, at = memoryview(data), 12
    for _ in range(MOST_CHUNKS):
        if at + 8 > len(data):
            return
        name, size = struct.unpack_from("<4sI", data, at)
        at += 8
        rest = len(data) - at
        if name == b"data" and size >= UNKNOWN_SIZE:
            size = rest
        if size > rest:
            raise refused(
                f"the WAV file ends early: its chunk {ascii(name)[1:]} states {size} bytes, {rest} are there: "
                "send all of it"
            )
        yield name, view[at : at + size]
        # Chunks begin at even places.
        at += size + size % 2
    raise refused(f"the WAV file has more than {MOST_CHUNKS} chunks before its samples: write it anew without them")


def read_format(body: memoryview) -> WavFormat:
    if len(body) < 16:
        raise refused(f"the WAV file's chunk `fmt ` has {len(body)} bytes, at least 16 are needed: write it anew")
    kind, channels, rate, _, frame, bits = struct.unpack_from("<HHIIHH", body)
    if kind == EXTENSIBLE and len(body) >= 26:
        (kind,) = struct.unpack_from("<H", body, 24)
    if (kind, bits) not in SAMPLE_TYPES:
        what = f"{bits}-bit samples" if kind in (PCM, FLOAT) else f"{CODECS.get(kind, f'the codec {kind}')} samples"
        raise refused(f"the WAV file has {what}, which are not read here: {CONVERT}")
    if not 1 <= channels <= MOST_CHANNELS:
        raise refused(f"the WAV file has {channels} channels, 1 to {MOST_CHANNELS} are read: {CONVERT}")
    form = WavFormat(kind, channels, rate, bits)
    if frame != form.frame_bytes:
        raise refused(
            f"the WAV file states frames of {frame} bytes, its channels make {form.frame_bytes}: write it anew"
        )
    return form


def to_sound(body: memoryview, form: WavFormat) -> Sound:
    """Convert samples of any format, after checks that need no conversion."""
    if form.rate not in RATES:
        raise refused(f"the audio has {form.rate} samples a second, {RATES[0]} to {RATES[-1]} are read: {CONVERT}")
    frames, rest = divmod(len(body), form.frame_bytes)
    if rest or not frames:
        raise refused(
            f"the audio has {len(body)} bytes of samples, not one or more whole frames of {form.frame_bytes} bytes: "
            "send all of it"
        )
    if frames > MOST_SECONDS * form.rate:
        raise refused(
            f"the audio has {frames / form.rate:.1f} seconds, at most {MOST_SECONDS} are read: "
            "send a shorter recording",
            413,
        )
    return Sound(mixed(body, form), form.rate)


def mixed(body: memoryview, form: WavFormat) -> Samples:
    """Return the mean of the channels, from -1 to 1. Raises RequestError for samples that are no finite numbers."""
    raw = np.frombuffer(body, SAMPLE_TYPES[form.kind, form.bits])
    values: Samples
    if form.kind == FLOAT:
        # float64 beyond float32's range becomes infinite here, and is refused with the other such samples.
        with np.errstate(over="ignore", invalid="ignore"):
            values = raw.astype(np.float32)
        if not np.isfinite(values).all():
            raise refused("the WAV file has samples that are no finite numbers: write it anew")
        values = np.clip(values, -1, 1)
    elif form.bits == 8:
        values = (raw.astype(np.float32) - np.float32(128)) / np.float32(128)
    elif form.bits == 24:
        wide = np.zeros((len(raw) // 3, 4), np.uint8)
        wide[:, 1:] = raw.reshape(-1, 3)
        values = wide.view("<i4")[:, 0].astype(np.float32) / np.float32(1 << 31)
    else:
        values = raw.astype(np.float32) / np.float32(1 << form.bits - 1)
    return values if form.channels == 1 else values.reshape(-1, form.channels).mean(axis=1, dtype=np.float32)


def resample(sound: Sound, rate: int) -> Samples:
    """Return the samples at another rate. Raises ModelError where the library is missing."""
    if sound.rate == rate:
        return sound.samples
    resampled: Samples = library("soxr").resample(sound.samples, sound.rate, rate)
    return resampled


def to_pcm16(samples: Samples) -> bytes:
    """Return 16-bit samples, the lowest byte first."""
    raw: bytes = np.rint(np.clip(samples, -1, 1) * np.float32(32767)).astype("<i2").tobytes()
    return raw


def write_wav(pcm16: bytes, rate: int) -> bytes:
    return wav_header(rate, len(pcm16)) + pcm16
