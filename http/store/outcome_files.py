# SPDX-License-Identifier: Apache-2.0
"""The files in which the outcomes of a batch's lines are told. A file is written first, and what of it counts is said
by the usage log afterwards: so a crash leaves bytes too many at its end, never an outcome that is not there."""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from pontil.http.store.batch_book import BatchBook


class OutcomeFiles:
    """The open files of one batch by their kinds, of which `places` bytes count. Its methods block, and raise OSError.
    Conservation: between two calls each file ends at its place."""

    def __init__(self, book: BatchBook, names: Mapping[str, str], places: Mapping[str, int]) -> None:
        self.files: dict[str, int] = {}
        self.places = {kind: places.get(kind, 0) for kind in names}
        with ExitStack() as failed:
            failed.callback(self.close)
            for kind, name in names.items():
                self.files[kind] = book.create(name)
                os.ftruncate(self.files[kind], self.places[kind])
            failed.pop_all()

    def append(self, told: Sequence[tuple[str, bytes]]) -> list[int]:
        """Add these lines, each to the file of its kind, or none; return the place after each. They are on the disk on
        return."""
        places, ends, data = dict(self.places), [], {kind: bytearray() for kind in self.files}
        for kind, line in told:
            if kind in data:
                data[kind] += line
                places[kind] += len(line)
            ends.append(places.get(kind, 0))
        try:
            for kind, file in self.files.items():
                if data[kind]:
                    write(file, bytes(data[kind]), self.places[kind])
                    os.fsync(file)
        except OSError:
            for kind, file in self.files.items():
                os.ftruncate(file, self.places[kind])
            raise
        self.places = places
        return ends

    def close(self) -> None:
        for file in self.files.values():
            os.close(file)


def write(file: int, data: bytes, place: int) -> None:
    """Write all of the data from a place on. Raises OSError."""
    written = 0
    while written < len(data):
        written += os.pwrite(file, data[written:], place + written)
