# SPDX-License-Identifier: Apache-2.0
"""Recordings and images of clients: what becomes of them, and what is refused without harm to anything else."""

import asyncio
import base64
import io
import wave
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from picture_bombs import png
from PIL import Image

from pontil.runtime.errors import RequestError
from pontil.runtime.stages.graph.medium import IMAGE, SOUND, Medium, media_of
from pontil.runtime.stages.media import child
from pontil.runtime.stages.media.child import NO_LIBRARY, image_library, read_image
from pontil.runtime.stages.media.reader import (
    PIECE,
    MediaForms,
    MediaProcess,
    MediaReader,
    PromptMedia,
    in_base64,
    of_base64,
)
from pontil.runtime.stages.nodes.squares import Squares

SQUARES = Squares(32, 32 * 32, 1 << 16)
FORMS = MediaForms(lambda samples: samples // 160, SQUARES, {SOUND: 1, IMAGE: 2}, {})


def wav(samples: np.ndarray[Any, Any], rate: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes(samples.astype("<i2").tobytes())
    return file.getvalue()


def image(width: int, height: int, form: str = "PNG", mode: str = "RGB", **saved: Any) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (width, height), (9, 200, 30) if mode == "RGB" else None).save(file, form, **saved)
    return file.getvalue()


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.fixture(scope="module")
def reader(loop: asyncio.AbstractEventLoop) -> Iterator[MediaReader]:
    made = MediaReader(FORMS)
    yield made
    made.close()


def test_media_are_read_in_order(loop: asyncio.AbstractEventLoop, reader: MediaReader) -> None:
    samples = np.arange(1600) * 3
    files = [(IMAGE, image(100, 50), "a"), (SOUND, wav(samples, 16000), "b"), (IMAGE, image(64, 32, "JPEG"), "c")]
    given = loop.run_until_complete(reader.read(files))
    assert given.media == (
        Medium(IMAGE, 6, 6 * 32 * 32 * 3, 2, 3), Medium(SOUND, 10, 6400), Medium(IMAGE, 2, 2 * 32 * 32 * 3, 1, 2),
    )  # fmt: skip
    pixels, sound = given.data[: given.media[0].size], given.data[given.media[0].size :][:6400]
    assert set(pixels[0::3]) == {9} and set(pixels[1::3]) == {200}
    np.testing.assert_array_equal(np.frombuffer(sound, "<f4"), samples.astype(np.float32) / 32768)
    assert media_of({"media": [one.to_wire() for one in given.media]}) == given.media
    assert reader.process.started == 1


@pytest.mark.parametrize("size", [0, 1, 2, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 2])
def test_large_files_leave_the_loop_to_others(loop: asyncio.AbstractEventLoop, size: int) -> None:
    data, turns = bytes(range(256)) * (size // 256) + bytes(size % 256), 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def there_and_back() -> bytes:
        beside = asyncio.ensure_future(other())
        back = await of_base64(text := await in_base64(data))
        beside.cancel()
        assert text == base64.b64encode(data).decode()
        return back

    assert loop.run_until_complete(there_and_back()) == data and turns >= 2 * (size // PIECE)


def test_what_cannot_be_read_is_refused_by_its_place(loop: asyncio.AbstractEventLoop, reader: MediaReader) -> None:
    whole = image(640, 640)
    for kind, data, says in (
        (IMAGE, whole[:-60], "no whole PNG or JPEG"),
        (IMAGE, png(30000, 30000), "is too large"),
        (IMAGE, png(2000, 2000), "no whole PNG or JPEG"),
        (IMAGE, image(3000, 2), "at most 200 times"),
        (IMAGE, image(8, 8, "GIF", "P"), "no whole PNG or JPEG"),
        (SOUND, wav(np.zeros(100), 4000), "samples a second"),
        (SOUND, b"RIFF\0\0\0\0WAVE", "no chunk `data`"),
        (SOUND, wav(np.zeros(100), 16000), "too short to be heard"),
    ):
        with pytest.raises(RequestError, match=says) as refused:
            loop.run_until_complete(reader.read([(kind, data, "messages[0].content[1]")]))
        assert refused.value.param == "messages[0].content[1]" and refused.value.code == f"invalid_{kind}"
    assert reader.process.crashed == 0


def test_a_file_that_takes_too_long_ends_the_process_alone(loop: asyncio.AbstractEventLoop) -> None:
    reader = MediaReader(FORMS, MediaProcess(timeout=0.0))
    with pytest.raises(RequestError, match="too much time or memory"):
        loop.run_until_complete(reader.read([(IMAGE, image(64, 64), "p")]))
    assert reader.process.pid is None


def test_a_picture_is_turned_as_its_camera_says() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    turned, _ = read_image(image_library(), image(96, 32, "JPEG", exif=exif), SQUARES)
    assert (turned.lines, turned.columns) == (3, 1)


def test_without_pillow_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    assert child.image_library() is None
    with pytest.raises(RequestError, match="pip install pontil"):
        read_image(None, b"", SQUARES)
    assert "pontil[images]" in NO_LIBRARY


@pytest.mark.parametrize("ids", [[5], [5, 2, 1], [1, 5], [1, 2, 2], [2, 1]])
def test_marks_of_the_text_are_not_taken_for_media(ids: list[int]) -> None:
    given = PromptMedia((Medium(SOUND, 3, 1), Medium(IMAGE, 4, 1, 2, 2)), b"", FORMS.marks, ("00", "01"))
    assert given.expanded([5, 1, 6, 2, 7]) == [5, 1, 1, 1, 6, 2, 2, 2, 2, 7]
    with pytest.raises(RequestError, match="special token"):
        given.expanded(ids)


@pytest.mark.parametrize(
    "value",
    [5, [[]], [["video", 1, 1, 0, 0]], [["audio", 0, 1, 0, 0]], [["audio", 1, 1, 1, 1]], [["image", 3, 1, 1, 2]],
     [["image", 2, True, 1, 2]], [["audio", -1, 1, 0, 0]]],
)  # fmt: skip
def test_media_that_no_proxy_wrote_are_refused(value: object) -> None:
    with pytest.raises(RequestError):
        media_of({"media": value})
