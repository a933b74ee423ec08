# SPDX-License-Identifier: Apache-2.0
"""The changes of a prefix index, kept until another process is told of them.

A key is told by its first 8 bytes: two keys that begin alike cost a worse choice of worker, and nothing else.
"""

from collections.abc import Iterable
from itertools import islice

SHORT_BYTES = 8
# Keys with which a journal begins, the newest ones; a reader keeps no more than that of one index.
MOST_PRESENT = 1 << 17
# Changes that wait to be told. Beyond them the journal is void, and its reader begins anew.
MOST_CHANGES = 1 << 18


class PrefixJournal:
    """The net changes since the last `take`: a key that came and went is told once, as gone. It begins with the keys
    that are `present`, oldest first. Not thread-safe: the thread that owns the index reads the journal, too."""

    def __init__(self, present: Iterable[bytes] = ()) -> None:
        newest = list(present)[-MOST_PRESENT:]
        self.changes: dict[bytes, bool] = {key[:SHORT_BYTES]: True for key in newest}
        self.is_void = False

    def add(self, key: bytes) -> None:
        self.note(key, True)

    def note(self, key: bytes, is_held: bool) -> None:
        if self.is_void:
            return
        self.changes[key[:SHORT_BYTES]] = is_held
        if len(self.changes) > MOST_CHANGES:
            self.clear()

    def clear(self) -> None:
        """Declare the journal void: the changes since the last `take` are unknown."""
        self.changes.clear()
        self.is_void = True

    def take(self, most: int) -> tuple[bytes, bytes]:
        """Remove and return the oldest changes, at most so many: the keys that were added, and those that were
        forgotten, each one behind the other."""
        changes = list(islice(self.changes.items(), most))
        if len(changes) == len(self.changes):
            self.changes.clear()
        else:
            for short, _ in changes:
                del self.changes[short]
        added_keys = b"".join([short for short, is_held in changes if is_held])
        return added_keys, b"".join([short for short, is_held in changes if not is_held])
