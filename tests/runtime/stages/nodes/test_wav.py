# SPDX-License-Identifier: Apache-2.0
"""WAV files are read within limits; what is none is refused in one sentence, whatever its bytes."""

import io
import struct
import wave

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.errors import ModelError, RequestError
from pontil.runtime.foundation.wav_header import wav_header
from pontil.runtime.stages.nodes import wav
from pontil.runtime.stages.nodes.libraries import library, missing
from pontil.runtime.stages.nodes.wav import Sound, read_pcm16, read_wav, resample, to_pcm16, write_wav

HALF = np.array([0.0, 0.5, -0.5, -1.0], np.float32)


def written(raw: bytes, *, width: int = 2, channels: int = 1, rate: int = 16000) -> bytes:
    """Return a file as the standard library writes it."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(width)
        writer.setframerate(rate)
        writer.writeframes(raw)
    return file.getvalue()


def made(*bodies: tuple[bytes, bytes]) -> bytes:
    """Return a file of chunks."""
    body = b"".join(
        name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2) for name, content in bodies
    )
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WAVE" + body


def form(
    kind: int = 1, channels: int = 1, rate: int = 16000, bits: int = 16, frame: int | None = None
) -> tuple[bytes, bytes]:
    frame = channels * bits // 8 if frame is None else frame
    return b"fmt ", struct.pack("<HHIIHH", kind, channels, rate, rate * frame & 0xFFFFFFFF, frame, bits)


@pytest.mark.parametrize(
    ("kind", "bits", "raw"),
    [
        (1, 8, bytes([128, 192, 64, 0])),
        (1, 16, np.array([0, 1 << 14, -1 << 14, -1 << 15], "<i2").tobytes()),
        (1, 24, bytes([0, 0, 0, 0, 0, 0x40, 0, 0, 0xC0, 0, 0, 0x80])),
        (1, 32, np.array([0, 1 << 30, -1 << 30, -1 << 31], "<i4").tobytes()),
        (3, 32, HALF.astype("<f4").tobytes()),
        (3, 64, HALF.astype("<f8").tobytes()),
    ],
)
def test_every_format(kind: int, bits: int, raw: bytes) -> None:
    sound = read_wav(made(form(kind, bits=bits), (b"LIST", b"odd"), (b"data", raw)))
    assert sound.samples.dtype == np.float32
    assert sound.samples.tolist() == HALF.tolist()
    if kind == 1:
        assert read_wav(written(raw, width=bits // 8)).samples.tolist() == HALF.tolist()
    extended = (b"fmt ", form(0xFFFE, bits=bits)[1] + struct.pack("<HHIH", 22, bits, 0, kind) + bytes(14))
    assert read_wav(made(extended, (b"data", raw))).samples.tolist() == HALF.tolist()


def test_channels_become_their_mean() -> None:
    stereo = np.array([[0.25, 0.75], [-0.5, 0.5]], "<f4").tobytes()
    assert read_wav(made(form(3, 2, bits=32), (b"data", stereo))).samples.tolist() == [0.5, 0.0]


@given(st.binary(min_size=1, max_size=200).map(lambda raw: raw * 2), st.integers(8000, 192000))
def test_what_is_written_is_read_again(raw: bytes, rate: int) -> None:
    """The lowest sample has no positive counterpart: it comes back as the one above it."""
    sound = read_wav(write_wav(raw, rate))
    assert sound.rate == rate
    assert sound.seconds == len(raw) / 2 / rate
    assert sound.samples.tolist() == read_pcm16(raw, rate).samples.tolist()
    expected = np.frombuffer(raw, "<i2")
    back = np.frombuffer(to_pcm16(sound.samples), "<i2")
    assert int(np.abs(back.astype(int) - expected).max()) <= 1
    with wave.open(io.BytesIO(write_wav(raw, rate))) as reader:
        assert (reader.getframerate(), reader.readframes(1000)) == (rate, raw)


def test_the_header_of_a_stream() -> None:
    raw = to_pcm16(HALF)
    assert read_wav(wav_header(24000) + raw).samples.tolist() == read_pcm16(raw, 24000).samples.tolist()
    assert len(wav_header(24000)) == len(wav_header(24000, 8)) == 44


FORM = form()
DATA = (b"data", bytes(8))


@pytest.mark.parametrize(
    ("data", "status", "says"),
    [
        (b"", 400, "the audio is empty, not a WAV file: convert it"),
        (b"ID3\x04" + bytes(90), 400, "is an MP3 file"),
        (b"\0\0\0\x20ftypM4A ", 400, "is an MP4 file"),
        (b"OggS" + bytes(90), 400, "is an Ogg file"),
        (bytes(90), 400, "is something else"),
        (b"RIFF\0\0\0\0AVI ", 400, "is something else"),
        (made(FORM), 400, "no chunk `data`"),
        (made(FORM, DATA)[:-1], 400, "states 8 bytes, 7 are there"),
        (made(DATA, FORM), 400, "before the chunk `fmt `"),
        (made((b"fmt ", b"short"), DATA), 400, "`fmt ` has 5 bytes"),
        (made(form(85), DATA), 400, "MP3 samples"),
        (made(form(7, bits=8), DATA), 400, "µ-law samples"),
        (made(form(4711), DATA), 400, "the codec 4711 samples"),
        (made(form(bits=12), DATA), 400, "12-bit samples"),
        (made(form(channels=0), DATA), 400, "0 channels"),
        (made(form(channels=9), DATA), 400, "9 channels, 1 to 8"),
        (made(form(frame=0), DATA), 400, "frames of 0 bytes"),
        (made(form(rate=0), DATA), 400, "0 samples a second"),
        (made(form(rate=0xFFFFFFFF), DATA), 400, "4294967295 samples a second"),
        (made(FORM, (b"data", b"")), 400, "0 bytes of samples"),
        (made(FORM, (b"data", b"abc")), 400, "3 bytes of samples"),
        (made(form(3, bits=32), (b"data", struct.pack("<ff", 0, float("nan")))), 400, "no finite numbers"),
        (made(form(3, bits=64), (b"data", struct.pack("<d", 1e300))), 400, "no finite numbers"),
        (made(*[(b"junk", b"")] * 100, FORM, DATA), 400, "more than 64 chunks"),
        (made(form(rate=8000), (b"data", bytes(16000 * 301))), 413, "301.0 seconds, at most 300"),
        (bytes(wav.MOST_BYTES + 1), 413, "has 26214401 bytes, at most 26214400"),
    ],
)
def test_what_is_refused(data: bytes, status: int, says: str) -> None:
    with pytest.raises(RequestError) as error:
        read_wav(data)
    assert says in str(error.value)
    assert (error.value.status, error.value.code) == (status, "invalid_audio")


def test_bare_samples_are_checked_too() -> None:
    with pytest.raises(RequestError, match="whole frames of 2 bytes"):
        read_pcm16(b"abc", 16000)
    with pytest.raises(RequestError, match="1 samples a second"):
        read_pcm16(b"ab", 1)


@given(st.data())
def test_a_damaged_file_is_read_or_refused(data: st.DataObject) -> None:
    """Bytes of the header are replaced by others, and the end is cut off."""
    whole = bytearray(made(FORM, (b"LIST", b"abc"), (b"data", bytes(range(64)))))
    for place, value in data.draw(st.lists(st.tuples(st.integers(0, 59), st.integers(0, 255)), max_size=6)):
        whole[place] = value
    whole = whole[: data.draw(st.integers(0, len(whole)))]
    try:
        sound = read_wav(bytes(whole))
    except RequestError as error:
        assert error.status == 400
    else:
        assert 0 < len(sound.samples) <= 64
        assert np.isfinite(sound.samples).all()


@given(st.binary(max_size=100))
def test_any_bytes_after_the_first_are_read_or_refused(rest: bytes) -> None:
    try:
        assert len(read_wav(b"RIFF\0\0\0\0WAVE" + rest).samples)
    except RequestError as error:
        assert error.status == 400


@pytest.mark.skipif("soxr" in missing(), reason="soxr of pontil[speech] is not installed")
def test_another_rate_keeps_a_tone() -> None:
    times = np.arange(44100, dtype=np.float32) / 44100
    tone = np.sin(2 * np.pi * 440 * times).astype(np.float32)
    resampled = resample(Sound(tone, 44100), 16000)
    assert len(resampled) == 16000
    assert int(np.argmax(np.abs(np.fft.rfft(resampled)))) == 440
    assert resample(Sound(tone, 16000), 16000) is tone


def test_a_missing_library_is_named() -> None:
    with pytest.raises(ModelError, match=r"needs the library no_such_library.*pip install pontil\[speech\]"):
        library("no_such_library")
