# SPDX-License-Identifier: Apache-2.0
"""The form of a file of packed weights. It begins with the memory of the weights, as an arena hands it out, each region
at the beginning of a page. Behind it stand the index, JSON, and a trailer: the index's place and size, its digest, and
MAGIC. The index names each item in order with its parts' types, shapes and places, and has a sum for each PIECE of the
memory.

torch is not imported: what only lists files needs none.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO

MAGIC = b"pontil packed weights 1\n"
TRAILER = 8 + 8 + 32 + len(MAGIC)
# The largest index that is read.
MOST_INDEX = 1 << 28
PIECE = 2 << 20


class PackedFileError(Exception):
    """A file of packed weights that is damaged, or that does not hold what is asked for."""


@dataclass(frozen=True, slots=True)
class PackedIndex:
    """The index of a file whose memory has `size` bytes."""

    about: dict[str, object]
    items: list[dict[str, object]]
    sums: list[int]
    size: int


def read_index(path: Path) -> PackedIndex:
    """Read what a file holds. Raises OSError, and PackedFileError where the file is cut off or its index damaged."""
    with path.open("rb") as file:
        whole = os.fstat(file.fileno()).st_size
        file.seek(max(0, whole - TRAILER))
        trailer = file.read()
        size, length = (int.from_bytes(trailer[place : place + 8], "little") for place in (0, 8))
        if trailer[48:] != MAGIC or size + length + TRAILER != whole or length > MOST_INDEX:
            raise PackedFileError(f"{path} is cut off or of another version")
        file.seek(size)
        index = file.read(length)
    if hashlib.sha256(index).digest() != trailer[16:48]:
        raise PackedFileError(f"{path} is damaged in its index")
    fields = json.loads(index)
    return PackedIndex(fields["about"], fields["items"], fields["sums"], size)


def write_index(file: IO[bytes], index: PackedIndex) -> None:
    """Write the index and the trailer behind the memory."""
    text = json.dumps({"about": index.about, "items": index.items, "sums": index.sums}).encode()
    digest = hashlib.sha256(text).digest()
    file.seek(index.size)
    file.write(text + index.size.to_bytes(8, "little") + len(text).to_bytes(8, "little") + digest + MAGIC)
    file.flush()
