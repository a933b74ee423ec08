# SPDX-License-Identifier: Apache-2.0
"""The proxy's access to the process that decodes recordings and images, and what becomes of them in a prompt."""

import asyncio
import base64
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from pontil.runtime.errors import RequestError
from pontil.runtime.grammar.processes.bounded_child import ChildLimits
from pontil.runtime.grammar.processes.bounded_process import BoundedProcess
from pontil.runtime.stages.graph.catalog import QWEN3_OMNI
from pontil.runtime.stages.graph.medium import (
    IMAGE,
    MEDIA,
    MOST_MEDIA_ROWS,
    NAMES,
    SOUND,
    Medium,
    begun_digest,
    counted,
    places_in,
)
from pontil.runtime.stages.media.answer import MediaAnswer
from pontil.runtime.stages.nodes.squares import Squares
from pontil.runtime.stages.qwen3_omni.encoders.forms import read_media_forms

READ_TIMEOUT = 20.0
# Of an image of the most pixels with an alpha channel, and what it is made to.
CHILD_MEMORY = 640 << 20
# Bytes of all recordings and images of a prompt, as encoders are given them: they travel in one message.
MOST_MEDIA_BYTES = 48 << 20
BYTES_PER_SAMPLE = 4
# Bytes, or characters of base64, of which three and four make a whole, that are worked on in a millisecond or two.
PIECE = 12 << 16


@dataclass(frozen=True, slots=True)
class MediaForms:
    """The forms in which a model takes media. A recording of so many samples has `sound_rows` rows, an image one for
    each of its `squares`; None: the model has no such encoder. In a prompt `marks` has the id that stands for one row,
    by kind, and `texts` what stands in the place of a medium, with one such id."""

    sound_rows: Callable[[int], int] | None
    squares: Squares | None
    marks: Mapping[str, int] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def kinds(self) -> tuple[str, ...]:
        found = {SOUND: self.sound_rows, IMAGE: self.squares}
        return tuple(kind for kind, form in found.items() if form is not None)

    def medium(self, kind: str, found: MediaAnswer, size: int) -> Medium:
        """Return what was decoded to so many bytes; a recording that is too short to be heard has no rows."""
        if kind == IMAGE:
            return Medium(IMAGE, found.lines * found.columns, size, found.lines, found.columns)
        assert self.sound_rows is not None, "a model with an encoder of sound"
        return Medium(SOUND, self.sound_rows(size // BYTES_PER_SAMPLE), size)


@dataclass(frozen=True, slots=True)
class PromptMedia:
    """The media of one prompt, in order, their bytes, and the digests of these, in hexadecimal."""

    media: tuple[Medium, ...]
    data: bytes = field(repr=False)
    marks: Mapping[str, int]
    digests: tuple[str, ...]

    @property
    def prompt_details(self) -> dict[str, int]:
        """The tokens of each kind of medium, as usage tells of them."""
        return {f"{kind}_tokens": counted(self.media, kind) for kind in (SOUND, IMAGE)}

    def options(self, prompt: Sequence[int]) -> dict[str, Any]:
        """Return what a run with this prompt is told of them. One that was cut has other places, and is refused."""
        told: dict[str, Any] = {MEDIA: [one.to_wire() for one in self.media]}
        try:
            places = places_in(prompt, self.media, self.marks)
        except ValueError:
            return told
        return told | {NAMES: [list(named) for named in zip(places, self.digests, strict=True)]}

    def expanded(self, ids: Sequence[int]) -> list[int]:
        """Return the ids of a prompt in which one mark stands for each medium, with as many marks as it has rows.
        Raises RequestError for a text that has such marks itself."""
        known = set(self.marks.values())
        if [token for token in ids if token in known] != [self.marks[one.kind] for one in self.media]:
            says = "messages hold a special token that stands for a recording or an image: leave it out of the text"
            raise RequestError(says, param="messages")
        return self.beginning(ids)

    def beginning(self, ids: Sequence[int]) -> list[int]:
        """Return the same of ids with which the prompt begins, whose marks are those of its first media."""
        known, left, made = set(self.marks.values()), deque(self.media), list[int]()
        for token in ids:
            made += [token] * (left.popleft().rows if token in known and left else 1)
        return made


class MediaProcess(BoundedProcess):
    """The process in which recordings and images are decoded."""

    name, module, work = "media", "pontil.runtime.stages.media.child", "decodes recordings and images"
    # Base64 of what encoders are given.
    most_reply = 2 * MOST_MEDIA_BYTES

    def __init__(self, timeout: float = READ_TIMEOUT) -> None:
        super().__init__(ChildLimits(memory=CHILD_MEMORY), timeout)


class MediaReader:
    """Reads media for a model, one at a time. Call `close` after the server has stopped."""

    def __init__(self, forms: MediaForms, process: MediaProcess | None = None) -> None:
        self.forms, self.process, self.turn = forms, process or MediaProcess(), asyncio.Lock()

    async def read(self, files: Sequence[tuple[str, bytes, str]]) -> PromptMedia:
        """Return the media of a prompt, each (kind, bytes of a file, its place in the request). Raises RequestError,
        naming the place, and Unavailable without a process to ask."""
        media, parts, digests = list[Medium](), list[bytes](), list[str]()
        for kind, data, place in files:
            medium, part = await self.read_one(kind, data, place)
            media.append(medium)
            parts.append(part)
            digests.append(await digest_of(medium, part))
            if (rows := sum(one.rows for one in media)) > MOST_MEDIA_ROWS:
                says = f"recordings and images have {rows} tokens, and at most {MOST_MEDIA_ROWS} are taken: send fewer"
                raise RequestError(says, param="messages")
            if sum(map(len, parts)) > MOST_MEDIA_BYTES:
                says = f"recordings and images have more than {MOST_MEDIA_BYTES} bytes when decoded: send fewer"
                raise RequestError(says, param="messages")
        return PromptMedia(tuple(media), b"".join(parts), self.forms.marks, tuple(digests))

    async def read_one(self, kind: str, data: bytes, place: str) -> tuple[Medium, bytes]:
        squares = [] if self.forms.squares is None else astuple(self.forms.squares)
        question = f"{json.dumps([kind, squares])}\n{await in_base64(data)}"
        code = f"invalid_{kind}"
        try:
            async with self.turn:
                answer = await self.process.ask(question)
        except asyncio.TimeoutError:
            answer = None
        if answer is None:
            raise RequestError(f"{place} takes too much time or memory to decode: send another", param=place, code=code)
        head, _, text = answer.partition("\n")
        found = MediaAnswer(**json.loads(head))
        if found.refused is not None:
            raise RequestError(f"{place} cannot be read: {found.refused}", param=place, code=code)
        made = await of_base64(text)
        medium = self.forms.medium(kind, found, len(made))
        if not medium.rows:
            raise RequestError(f"{place} is too short to be heard", param=place, code=code)
        return medium, made

    def close(self) -> None:
        self.process.end()


def media_forms(graph: str, path: Path) -> MediaForms | None:
    """Return the forms in which a model takes media, None for one that takes none. Raises ModelError."""
    return MediaForms(*read_media_forms(path)) if graph == QWEN3_OMNI.name else None


async def in_base64(data: bytes) -> str:
    """Encode by pieces, between which the event loop does other work."""
    parts = list[str]()
    for start in range(0, len(data), PIECE):
        parts.append(base64.b64encode(data[start : start + PIECE]).decode())
        await asyncio.sleep(0)
    return "".join(parts)


async def of_base64(text: str) -> bytes:
    """Decode in the same way."""
    parts = list[bytes]()
    for start in range(0, len(text), PIECE):
        parts.append(base64.b64decode(text[start : start + PIECE]))
        await asyncio.sleep(0)
    return b"".join(parts)


async def digest_of(medium: Medium, data: bytes) -> str:
    """Return the digest of a medium in hexadecimal, made in the same way."""
    digest = begun_digest(medium)
    for start in range(0, len(data), PIECE):
        digest.update(data[start : start + PIECE])
        await asyncio.sleep(0)
    return digest.hexdigest()
