# SPDX-License-Identifier: Apache-2.0
"""The recordings and images of a prompt, as every worker of a run is told of them: how many positions each stands at,
and how many bytes its encoder is given."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from pontil.runtime.errors import RequestError

# The option of a run that lists them, in the order of the prompt. The edge of a stage that encodes them.
MEDIA = "media"
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
