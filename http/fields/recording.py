# SPDX-License-Identifier: Apache-2.0
"""Recordings in messages: bytes of a WAV file in base64, checked as far as costs nothing."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pontil.http.fields.picture import LinkedPicture, Picture
from pontil.http.schema.reader import Fields
from pontil.runtime.errors import RequestError
from pontil.runtime.foundation.wav_header import is_wav
from pontil.runtime.proxy.requests.generation import Generation, PromptWork

INPUT_AUDIO = "input_audio"
MAGICS = (
    (b"ID3", "MP3"),
    (b"\xff\xfb", "MP3"),
    (b"\xff\xf3", "MP3"),
    (b"\xff\xf2", "MP3"),
    (b"OggS", "Ogg"),
    (b"fLaC", "FLAC"),
    (b"\x1aE\xdf\xa3", "WebM"),
)
CONVERT = "convert it to WAV first, for example with `ffmpeg -i recording out.wav`"


@dataclass(frozen=True, slots=True)
class Recording:
    """The bytes of a WAV file. Errors call it by its `place` in the request."""

    data: bytes = field(repr=False)
    place: str


MediaPart = Recording | Picture | LinkedPicture


@dataclass(frozen=True, slots=True)
class MixedContent:
    """The content of a message with recordings or images, in order with its texts."""

    parts: tuple[str | MediaPart, ...]

    def __len__(self) -> int:
        """The number of characters of its texts, with one for each recording and image."""
        return sum(len(part) if isinstance(part, str) else 1 for part in self.parts)

    def heard(self, texts: Mapping[MediaPart, str], most: int | None = None) -> str:
        """Return it with the text that stands for each recording and image; only so many characters of it, or all."""
        left, found = len(self) if most is None else most, ""
        for part in self.parts if left else ():
            found += part[:left] if isinstance(part, str) else texts[part] if left else ""
            left -= min(left, len(part) if isinstance(part, str) else 1)
        return found

    @property
    def media(self) -> tuple[MediaPart, ...]:
        return tuple(part for part in self.parts if not isinstance(part, str))


class GivenMedia(Protocol):
    """The recordings and images of a prompt, as the model's encoder is given them."""

    @property
    def prompt_details(self) -> dict[str, int]:
        """The tokens of each kind of medium, as usage tells of them."""

    def expanded(self, ids: Sequence[int]) -> list[int]:
        """Return the ids of a prompt in which one mark stands for each of them, with a mark for each of their rows.
        Raises RequestError."""

    def beginning(self, ids: Sequence[int]) -> list[int]:
        """Return the same of ids with which such a prompt begins."""

    def work(self, work: Generation) -> PromptWork:
        """Return the work that answers in text to a prompt with them. Raises Unavailable."""


@dataclass(frozen=True, slots=True)
class HeardMedia:
    """The texts that stand for the recordings and images of a prompt, and these, where the model's stages are given
    them."""

    texts: Mapping[MediaPart, str]
    media: GivenMedia | None = None


def read_recording(fields: Fields) -> Recording:
    """Read a content part of the type input_audio."""
    audio = fields.required_object(INPUT_AUDIO, 'is missing: give {"data": base64, "format": "wav"}')
    form = audio.text("format")
    if form != "wav":
        says = '"wav", the only format that is read: convert other recordings first'
        raise audio.unfit("format", form, says, "unsupported_parameter")
    base64_text = audio.required_text("data")
    place = f"{audio.path}data"
    try:
        data = base64.b64decode(base64_text.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise audio.wrong("data", "must be base64 without line ends: encode the bytes of a WAV file") from None
    audio.ignore_rest()
    fields.ignore_rest()
    check_wav(data, place)
    return Recording(data, place)


def check_wav(data: bytes, place: str) -> None:
    """Raise RequestError for what is no WAV file."""
    if not is_wav(data):
        kind = next((name for magic, name in MAGICS if data.startswith(magic)), None)
        seems = "is empty" if not data else f"is {kind}" if kind else "is no WAV file"
        raise RequestError(f"{place} {seems}: {CONVERT}", param=place, code="invalid_audio")
