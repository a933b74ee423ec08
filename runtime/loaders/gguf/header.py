# SPDX-License-Identifier: Apache-2.0
"""The header of a GGUF file (versions 2 and 3, little-endian): scalar metadata and the place of each tensor.

Layout: magic, version, tensor count, metadata count, metadata, tensor descriptions, padding, tensor bytes
(ggml/docs/gguf.md). `gguf.GGUFReader` creates an object for every entry of the vocabulary and needs seconds for it;
this reader skips arrays that nobody asked for, and needs milliseconds.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

from pontil.runtime.errors import ModelError

Scalar = int | float | bool | str
Array = tuple[Scalar, ...] | list[str]

NUMBERS = tuple(struct.Struct("<" + code) for code in "BbHhIif?")
"""Scalar types 0 to 7; 8 is a string, 9 an array, 10 to 12 are the 64-bit numbers."""
WIDE_NUMBERS = {10: struct.Struct("<Q"), 11: struct.Struct("<q"), 12: struct.Struct("<d")}
STRING, ARRAY = 8, 9
U32, U64 = struct.Struct("<I"), struct.Struct("<Q")
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
SHORT = 1024
"""Longer arrays belong to the vocabulary."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """`shape` is outermost first, as torch has it. `kind` is the number of a ggml type. `offset` counts from the start
    of the file, in bytes. Of a model in several files, `part` is the file's place among them."""

    shape: tuple[int, ...]
    kind: int
    offset: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """`metadata` leaves arrays out. `arrays` has them: those that were asked for and short ones of numbers (such as one
    for each layer), None for the others. `size` is the header's own length in bytes, before padding."""

    metadata: dict[str, Scalar]
    arrays: dict[str, Array | None]
    tensors: dict[str, GgufTensor]
    size: int

    def text(self, key: str) -> str | None:
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def integer(self, key: str) -> int | None:
        value = self.metadata.get(key)
        return value if type(value) is int else None

    def number(self, key: str) -> float | None:
        value = self.metadata.get(key)
        return float(value) if isinstance(value, int | float) else None


def read_header(path: Path, whole: tuple[str, ...] = ()) -> GgufHeader:
    """Read the header, with every array whose key begins with one of `whole`. Raises ModelError for a file that is not
    GGUF, of another version or byte order, or truncated."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return Cursor(data, whole).header()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, OverflowError, struct.error) as error:
        raise ModelError(f"{path} is not a whole GGUF file of version 2 or 3: fetch it again") from error


class Cursor:
    """A position in a mapped file. Reading past the end raises struct.error; malformed data raises ValueError."""

    def __init__(self, data: mmap.mmap, whole: tuple[str, ...] = ()) -> None:
        self.data, self.whole = data, whole
        self.at = 0

    def header(self) -> GgufHeader:
        magic, version = self.take(4), self.number(U32)
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError("no GGUF")
        tensor_count, entry_count = self.number(U64), self.number(U64)
        entries = dict(self.entry() for _ in range(entry_count))
        metadata = {key: value for key, value in entries.items() if isinstance(value, Scalar)}
        arrays = {key: value for key, value in entries.items() if not isinstance(value, Scalar)}
        tensors = dict(self.tensor() for _ in range(tensor_count))
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0:
            raise ValueError("no alignment")
        start = -(-self.at // alignment) * alignment
        placed = {
            name: GgufTensor(tensor.shape, tensor.kind, start + tensor.offset) for name, tensor in tensors.items()
        }
        return GgufHeader(metadata, arrays, placed, self.at)

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise ValueError("cut off")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def number(self, kind: struct.Struct) -> int:
        (value,) = kind.unpack_from(self.data, self.at)
        self.at += kind.size
        return value  # type: ignore[no-any-return]

    def string(self) -> str:
        return self.take(self.number(U64)).decode()

    def entry(self) -> tuple[str, Scalar | Array | None]:
        """Read one key and its value; None for an array that is skipped."""
        key, kind = self.string(), self.number(U32)
        if kind == ARRAY:
            return key, self.array(key.startswith(self.whole))
        return key, self.string() if kind == STRING else self.number(scalar(kind))

    def array(self, whole: bool) -> Array | None:
        """Read an array that is wanted `whole`, or is short and of numbers; skip another one."""
        kind, count = self.number(U32), self.number(U64)
        if kind == STRING and whole:
            return self.strings(count)
        if kind == STRING:
            self.skip_strings(count)
            return None
        layout = struct.Struct(f"<{count}{scalar(kind).format[1:]}")
        values = layout.unpack_from(self.data, self.at) if whole or count <= SHORT else None
        self.at += layout.size
        return values

    def strings(self, count: int) -> list[str]:
        data, unpack, at, found = self.data, U64.unpack_from, self.at, list[str]()
        for _ in range(count):
            start = at + 8
            at = start + unpack(data, at)[0]
            if at > len(data):
                raise ValueError("cut off")
            found.append(data[start:at].decode())
        self.at = at
        return found

    def skip_strings(self, count: int) -> None:
        data, unpack, at = self.data, U64.unpack_from, self.at
        for _ in range(count):
            at += 8 + unpack(data, at)[0]
        self.at = at

    def tensor(self) -> tuple[str, GgufTensor]:
        """Read one description. The offset still counts from the start of the tensors' bytes."""
        name, dimensions = self.string(), self.number(U32)
        if dimensions > MAX_DIMENSIONS:
            raise ValueError("too many dimensions")
        shape = tuple(self.number(U64) for _ in range(dimensions))[::-1]
        return name, GgufTensor(shape, self.number(U32), self.number(U64))


def scalar(kind: int) -> struct.Struct:
    if kind in WIDE_NUMBERS:
        return WIDE_NUMBERS[kind]
    if kind >= len(NUMBERS):
        raise ValueError(f"no scalar type {kind}")
    return NUMBERS[kind]
