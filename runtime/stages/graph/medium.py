# SPDX-License-Identifier: Apache-2.0
"""The recordings and images of a prompt, as every worker of a run is told of them: how many positions each stands at,
how many bytes its encoder is given, and, for the keys of a prefix cache, which one it is."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from pontil.runtime.cache.prefix import OTHER_BYTES, OTHER_THAN_ID
from pontil.runtime.errors import RequestError

# The option of a run that lists them, in the order of the prompt. The edge of a stage that encodes them.
MEDIA = "media"
# The options with the place of the first row of each and the digest of its bytes, and with the encoder that makes the
# rows, where all workers that may make them are alike.
NAMES, ENCODER = "media_names", "media_encoder"
DIGEST_BYTES = 32
SOUND, IMAGE = "audio", "image"
# The most rows of a prompt's media.
MOST_MEDIA_ROWS = 1 << 14
# Rows of one item of the stream; the last one of a medium has the rest.
MEDIA_UNIT = 32


@dataclass(frozen=True, slots=True)
class Medium:
    """A recording, or an image whose rows make `lines` and `columns`. It stands at as many positions as it has `rows`,
    and its encoder is given `size` bytes."""

    kind: str
    rows: int
    size: int
    lines: int = 0
    columns: int = 0

    def to_wire(self) -> list[Any]:
        return list(astuple(self))


def media_of(options: Mapping[str, Any]) -> tuple[Medium, ...]:
    """Return the media of a run with these options. Raises RequestError for what `to_wire` did not write."""
    values = options.get(MEDIA, [])
    if not isinstance(values, Sequence) or not all(map(is_medium, values)):
        raise RequestError("the recordings and images of a run are malformed")
    media = tuple(Medium(*value) for value in values)
    if sum(one.rows for one in media) > MOST_MEDIA_ROWS:
        raise RequestError(f"recordings and images have more than {MOST_MEDIA_ROWS} rows: send fewer, or smaller ones")
    return media


def is_medium(value: Any) -> bool:
    if not isinstance(value, list | tuple) or len(value) != len(Medium.__slots__) or value[0] not in (SOUND, IMAGE):
        return False
    if not all(type(number) is int and number >= 0 for number in value[1:]):
        return False
    _, rows, size, lines, columns = value
    return bool(rows and size and lines * columns == (rows if value[0] == IMAGE else 0))


def counted(media: Sequence[Medium], kind: str) -> int:
    """Return the positions of all media of a kind."""
    return sum(one.rows for one in media if one.kind == kind)


def places_in(prompt: Sequence[int], media: Sequence[Medium], marks: Mapping[str, int]) -> list[int]:
    """Return the place of the first row of each medium, whose rows have the marks of their kinds. Raises ValueError
    where these are not all there."""
    places, behind = list[int](), 0
    for one in media:
        place = prompt.index(marks[one.kind], behind)
        places.append(place)
        behind = place + one.rows
    return places


def begun_digest(medium: Medium) -> hashlib.blake2b:
    """Begin the digest of a medium, of what it is; its bytes follow."""
    return hashlib.blake2b(repr(astuple(medium)).encode(), digest_size=DIGEST_BYTES)


def contents_of(prompt: list[int], options: Mapping[str, Any]) -> list[int] | None:
    """Return a prompt as the keys of its blocks are made of it: with the name of each medium, by its bytes and its
    encoder, in the place of its first row. None where nobody knows which media they are. Raises RequestError for names
    that cannot be those of this prompt."""
    if not options.get(MEDIA):
        return prompt
    named, encoder = options.get(NAMES), options.get(ENCODER)
    if named is None or encoder is None:
        return None
    made = list(prompt)
    try:
        if len(named) != len(options[MEDIA]):
            raise ValueError("a medium without a name")
        for place, digest in named:
            if not 0 <= place < len(made):
                raise ValueError("a place outside of the prompt")
            made[place] = name_of(bytes.fromhex(digest), encoder)
    except (TypeError, ValueError):
        raise RequestError("the names of recordings and images are malformed") from None
    return made


def stated_media(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the media of a run, and the encoder that made their rows, as the statement of a receipt has them; nothing
    where there are none. The names of all have to be known."""
    media = media_of(options)
    if not media:
        return {}
    named, (identity, dtype, kernels) = options[NAMES], options[ENCODER]
    told = [
        {"kind": one.kind, "rows": one.rows, "bytes": one.size, "lines": one.lines, "columns": one.columns,
         "place": place, "digest": digest}
        for one, (place, digest) in zip(media, named, strict=True)
    ]  # fmt: skip
    return {"media": told, "encoder": {"fingerprint": identity, "dtype": dtype, "kernels": kernels}}


def options_of(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run that name the media of a statement, and their encoder."""
    told = stated["encoder"]
    named = [[one["place"], one["digest"]] for one in stated["media"]]
    return {NAMES: named, ENCODER: [told["fingerprint"], told["dtype"], told["kernels"]]}


def name_of(digest: bytes, encoder: Sequence[str]) -> int:
    """Return the number that stands for a medium as this encoder sees it."""
    named = hashlib.blake2b(digest + repr(list(encoder)).encode(), digest_size=OTHER_BYTES, person=b"medium")
    return int.from_bytes(named.digest(), "little") | OTHER_THAN_ID
