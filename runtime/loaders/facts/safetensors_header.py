# SPDX-License-Identifier: Apache-2.0
"""The header of a safetensors file: the size of a JSON object in 8 bytes, and that object. No torch here."""

from __future__ import annotations

import json
from pathlib import Path

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.form_choice import Stored

SIZE_BYTES, MOST_BYTES = 8, 100_000_000
"""No header is longer, by the format's own rule."""


def header_tensors(path: Path) -> dict[str, Stored]:
    """Return the shape and the type of each tensor. Raises ModelError."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(SIZE_BYTES), "little")
            found = json.loads(file.read(size if size <= MOST_BYTES else 0))
        return {name: stored(one["shape"], one["dtype"]) for name, one in found.items() if name != "__metadata__"}
    except (OSError, ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise ModelError(f"{path} is damaged or cut off: fetch it again") from error


def header_size(path: Path) -> int:
    """Return the bytes before those of the tensors. Raises ModelError."""
    try:
        with path.open("rb") as file:
            return SIZE_BYTES + int.from_bytes(file.read(SIZE_BYTES), "little")
    except OSError as error:
        raise ModelError(f"{path} is damaged or cut off: fetch it again") from error


def stored(shape: object, kind: object) -> Stored:
    """Raises ValueError unless these are a shape and a type."""
    if isinstance(shape, list) and all(type(size) is int for size in shape) and isinstance(kind, str):
        return tuple(shape), kind
    raise ValueError
