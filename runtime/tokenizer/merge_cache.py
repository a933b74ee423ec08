# SPDX-License-Identifier: Apache-2.0
"""Merges that were derived once, kept in a file for every process that loads the same tokenizer."""

from __future__ import annotations

import hashlib
import os
import tempfile
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

Pair = tuple[int, int]
MAGIC = b"pontil merges 1\n"
"""Change it with the format and with the way merges are derived."""
DIGEST_BYTES = 32


class MergeCache:
    """A folder of files, each named by a hash of the input from which its content was derived.

    A file holds MAGIC, the SHA-256 of the rest, and the ids of the pairs as 32-bit numbers of this machine. The content
    of any other file is derived and written anew; a folder that cannot be read or written only costs time. Without a
    folder nothing is cached.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def pairs(self, pieces: Sequence[str], scores: Sequence[float], derive: Callable[[], list[Pair]]) -> list[Pair]:
        """The result of `derive` for these pieces and scores, from the cache if it is there."""
        if self.folder is None:
            return derive()
        path = self.folder / f"{source_digest(pieces, scores)}.merges"
        merge_pairs = load(path)
        if merge_pairs is None:
            merge_pairs = derive()
            with suppress(OSError):
                store(path, merge_pairs)
        return merge_pairs


def source_digest(pieces: Sequence[str], scores: Sequence[float]) -> str:
    digest = hashlib.sha256(MAGIC)
    lengths = array("I", map(len, pieces))
    for part in (lengths.tobytes(), "".join(pieces).encode(), array("d", scores).tobytes()):
        digest.update(part)
    return digest.hexdigest()


def load(path: Path) -> list[Pair] | None:
    """Load a file; None if it does not exist or is not valid."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    start = len(MAGIC) + DIGEST_BYTES
    payload = memoryview(data)[start:]
    if data[:start] != head(payload):
        return None
    ids = array("I")
    ids.frombytes(payload)
    return list(zip(ids[::2], ids[1::2], strict=True))


def store(path: Path, pairs: Sequence[Pair]) -> None:
    """Write a file atomically, also if other processes write the same one. Raises OSError."""
    content = array("I", [number for pair in pairs for number in pair]).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix="partial-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(head(content) + content)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink()
        raise


def head(content: bytes | memoryview) -> bytes:
    return MAGIC + hashlib.sha256(content).digest()
