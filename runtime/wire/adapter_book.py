# SPDX-License-Identifier: Apache-2.0
"""The adapters that came and went while a launch runs, as one process knows them: any two can merge what they know.

Proxies and workers have it alike, so that it outlives each of them: whoever begins is told by the others.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pontil.runtime.wire.adapter_messages import AdapterState, AdapterTable

# Names that are remembered, unloaded ones among them: then the one that was unloaded longest ago is forgotten.
MOST_NAMES = 1024
MOST_ID = 1 << 31
DIGEST = re.compile(r"[0-9a-f]{64}|", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class AdapterChange:
    """The last change of a name: its number, the digest of the adapter that it stands for since then, empty: of none,
    the directory of that one. Of two with one number all choose the same. One that was `retracted` is later than
    itself, and than no other one: who has not heard of all changes takes back no other one's. The tokens of its
    `invocation` activate the adapter, if there are any: its digest tells these."""

    number: int
    digest: str
    directory: str
    retracted: bool = False
    invocation: tuple[int, ...] = field(default=(), compare=False)

    @property
    def stands_for(self) -> str:
        """The digest of the adapter that the name stands for; empty: none."""
        return "" if self.retracted else self.digest


def is_sound(change: AdapterChange) -> bool:
    return bool(DIGEST.fullmatch(change.digest)) and all(0 <= token < MOST_ID for token in change.invocation)


def told(message: AdapterTable | AdapterState) -> dict[str, AdapterChange]:
    """Return the changes that a message tells, by name."""
    digests, directories, retracted = message.digests, message.directories, message.retracted or ()
    return {
        name: AdapterChange(
            number,
            digests.get(name, ""),
            directories.get(name, ""),
            name in retracted,
            tuple(message.invocations.get(name, ())),
        )
        for name, number in message.changes.items()
    }


@dataclass(slots=True)
class AdapterBook:
    """The last change of each name."""

    changes: dict[str, AdapterChange] = field(default_factory=dict)

    @property
    def next_number(self) -> int:
        return 1 + max((change.number for change in self.changes.values()), default=0)

    def digest_of(self, name: str, before: str | None) -> str | None:
        """Return the digest for which a name stands, where it stood for `before` when the launch began."""
        change = self.changes.get(name)
        return before if change is None else change.stands_for or None

    def named(self, before: Mapping[str, str]) -> dict[str, str]:
        """Return the digests of all names, where these were there when the launch began."""
        kept = {name: digest for name, digest in before.items() if name not in self.changes}
        return kept | {name: change.digest for name, change in self.changes.items() if change.stands_for}

    def take(self, message: AdapterTable | AdapterState) -> list[str]:
        """Merge what another process knows. Return the names that changed."""
        return self.merge({name: one for name, one in told(message).items() if is_sound(one)})

    def merge(self, changes: Mapping[str, AdapterChange]) -> list[str]:
        newer = [name for name, one in changes.items() if name not in self.changes or one > self.changes[name]]
        self.changes |= {name: changes[name] for name in newer}
        while len(self.changes) > MOST_NAMES and (gone := self.unloaded_longest_ago) is not None:
            del self.changes[gone]
        return newer

    @property
    def unloaded_longest_ago(self) -> str | None:
        gone = [(change.number, name) for name, change in self.changes.items() if not change.stands_for]
        return min(gone, default=(0, None))[1]

    def lacks(self, message: AdapterTable | AdapterState) -> bool:
        """Return whether the sender of this lacks a change that is known here, or takes another one for the last."""
        theirs, ours = told(message), self.changes
        if message.retracted is None:
            # It would say the same again, whatever it is told.
            ours = {name: replace(change, retracted=False) for name, change in ours.items()}
        return any(name not in theirs or theirs[name] < change for name, change in ours.items())

    @property
    def fields(self) -> dict[str, Any]:
        """All of it as messages have it."""
        items = self.changes.items()
        return {
            "changes": {name: change.number for name, change in items},
            "digests": {name: change.digest for name, change in items},
            "directories": {name: change.directory for name, change in items},
            "retracted": [name for name, change in items if change.retracted],
            "invocations": {name: list(change.invocation) for name, change in items if change.invocation},
        }
