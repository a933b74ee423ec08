# SPDX-License-Identifier: Apache-2.0
"""Files with the recordings and images that a receipt states: only those very ones are taken."""

import io
import wave
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pontil.runtime.errors import RequestError
from pontil.runtime.stages.graph.medium import Medium, begun_digest
from pontil.runtime.stages.media.reader import MediaForms
from pontil.runtime.stages.nodes.squares import Squares
from pontil.runtime.stages.worker.stated_media import MediaFile, read_file

PIXELS = np.random.default_rng(1).integers(0, 255, (64, 96, 3), np.uint8)
FORMS = MediaForms(lambda samples: samples // 100, Squares(32, 32 * 32, 1 << 16))


def png(pixels: Any = PIXELS, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", **options)
    return file.getvalue()


def wav(samples: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(16000)
        writer.writeframes(bytes(2 * samples))
    return file.getvalue()


def stated(medium: Medium, data: bytes) -> dict[str, Any]:
    digest = begun_digest(medium)
    digest.update(data)
    return {"kind": medium.kind, "digest": digest.hexdigest()}


SEEN = stated(Medium("image", 6, PIXELS.size, 2, 3), PIXELS.tobytes())
HEARD = stated(Medium("audio", 4, 1600), bytes(1600))


def test_the_pixels_count_and_not_the_file() -> None:
    for level in (0, 9):
        medium, data = read_file(MediaFile("a.png", png(compress_level=level)), SEEN, FORMS)
        assert medium == Medium("image", 6, PIXELS.size, 2, 3) and data == PIXELS.tobytes()
    assert read_file(MediaFile("a.wav", wav(400)), HEARD, FORMS) == (Medium("audio", 4, 1600), bytes(1600))


@pytest.mark.parametrize(
    ("stated", "data", "says"),
    [
        (SEEN, png(PIXELS ^ 1), "it is not the image that the receipt states"),
        (SEEN, png(PIXELS[:32]), "it is not the image that the receipt states"),
        (SEEN, wav(400), "it cannot be read: the file is no whole PNG or JPEG"),
        (HEARD, wav(401), "it is not the audio that the receipt states"),
        (HEARD, png(), "it cannot be read: "),
        (SEEN | {"kind": "video"}, png(), "no encoder of the kind 'video'"),
        (SEEN | {"digest": "00" * 32}, png(), "it is not the image"),
    ],
)
def test_any_other_file_is_told_by_its_name(stated: dict[str, Any], data: bytes, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        read_file(MediaFile("it", data), stated, FORMS)
