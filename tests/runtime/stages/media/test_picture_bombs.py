# SPDX-License-Identifier: Apache-2.0
"""Images that are made to exhaust the server are refused in a sentence, or read as what they are, by the same process
as before: none comes as far as its limits."""

import asyncio
import struct
import zlib
from collections.abc import Iterator

import psutil
import pytest
from picture_bombs import PNG_HEAD, chunk, frames, jpeg, packed_text, packed_zeros, png

from pontil.runtime.errors import RequestError
from pontil.runtime.stages.graph.medium import IMAGE
from pontil.runtime.stages.media.reader import MediaForms, MediaReader
from pontil.runtime.stages.nodes.squares import Squares

# A square of pixels has 3 bytes, and each line of a PNG one more.
SQUARE = 32 * (1 + 32 * 3)


class BombedReader:
    """A reader with its process, and the loop in which it is asked."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.reader = MediaReader(MediaForms(None, Squares(32, 32 * 32, 1 << 16)))

    def squares(self, file: bytes) -> int:
        media = self.loop.run_until_complete(self.reader.read([(IMAGE, file, "place")])).media
        return media[0].rows

    def close(self) -> None:
        self.reader.close()
        self.loop.close()


@pytest.fixture(scope="module")
def decoder() -> Iterator[BombedReader]:
    made = BombedReader()
    yield made
    process = made.reader.process
    assert (process.started, process.crashed) == (1, 0) and psutil.pid_exists(process.pid or 0)
    made.close()


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (png(60_000, 60_000), "an image of 60000 by 60000 pixels is too large"),
        (png(0x7FFFFFFF, 0x7FFFFFFF), "is too large"),
        (png(0xFFFFFFFF, 1), "is too large|no whole PNG|at most 200 times"),
        (png(0, 0), "no whole PNG|is too large|at most|pixels"),
        (png(5_000, 5_000), "no whole PNG or JPEG"),
        (jpeg(65_500, 65_500), "an image of 65500 by 65500 pixels is too large"),
        (jpeg(65_500, 8), "at most 200 times"),
        (jpeg(5_000, 5_000)[:-40], "no whole PNG or JPEG"),
        (jpeg(0, 0), "no whole PNG or JPEG|pixels"),
        (frames("PNG", 3)[:90], "no whole PNG or JPEG"),
        (PNG_HEAD, "no whole PNG or JPEG"),
        (PNG_HEAD + chunk(b"IHDR", b""), "no whole PNG or JPEG"),
        (PNG_HEAD + struct.pack(">I", 0x7FFFFFFF) + b"IHDR", "no whole PNG or JPEG"),
        (b"\xff\xd8\xff" * 1000, "no whole PNG or JPEG"),
        (b"\xff\xd8\xff\xe0\xff\xff", "no whole PNG or JPEG"),
        (png(32, 32, packed_text(b"zTXt", 256), pixels=bytes(SQUARE)), "no whole PNG or JPEG"),
        (png(32, 32, packed_text(b"iTXt", 256), pixels=bytes(SQUARE)), "no whole PNG or JPEG"),
        (png(32, 32, *[packed_text(b"zTXt", 1)] * 500, pixels=bytes(SQUARE)), "no whole PNG or JPEG"),
    ],
)  # fmt: skip
def test_a_bomb_is_refused_in_a_sentence(decoder: BombedReader, file: bytes, says: str) -> None:
    assert len(file) < 1 << 20
    with pytest.raises(RequestError, match=f"^place cannot be read: .*({says})") as refused:
        decoder.squares(file)
    assert (refused.value.param, refused.value.code) == ("place", "invalid_image")


def test_zeros_are_packed_as_zlib_does() -> None:
    assert zlib.decompress(packed_zeros(3)) == bytes(3 << 20)


ENDLESS = chunk(b"acTL", struct.pack(">II", 0x7FFFFFFF, 0))


@pytest.mark.parametrize(
    "file",
    [
        frames("PNG", 200),
        frames("MPO", 60),
        png(32, 32, ENDLESS, pixels=bytes(SQUARE)),
        png(32, 32, packed=packed_zeros(64)),
        png(32, 32, pixels=bytes(SQUARE)) + bytes(1 << 19),
        frames("PNG", 3)[:-100],
    ],
    ids=[
        "many frames",
        "many images",
        "frames without end",
        "more pixels than it says",
        "more behind",
        "a later one cut off",
    ],
)
def test_of_many_images_the_first_is_read_and_no_more(decoder: BombedReader, file: bytes) -> None:
    assert decoder.squares(file) == 1


def test_a_jpeg_with_fewer_pixels_than_it_says_costs_what_one_of_that_size_does(decoder: BombedReader) -> None:
    """Its rest is grey, as in all of libjpeg's readers."""
    assert decoder.squares(jpeg(5_000, 5_000)) == 64
