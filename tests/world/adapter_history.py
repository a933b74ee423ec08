# SPDX-License-Identifier: Apache-2.0
"""The adapters for which names may stand at a time, by what an operator asked for and was told: the oracle."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from virtual_time import SeededWorld

if TYPE_CHECKING:
    from supervised_site import SupervisedSite

# The value of a name whose adapter no worker can load.
UNREADABLE = -1
# Seconds in which all proxies hear of a change that is answered, where nothing is amiss; and else.
HEARD_WITHIN, HEARD_LATE = 0.5, 1.0


@dataclass(slots=True)
class NameChange:
    """A change of a name: that it stands for the adapter of this value from now on; None: for nothing. `done_at`
    is when that was confirmed, if it was."""

    name: str
    value: int | None
    asked: float
    done_at: float | None = None


class AdapterHistory:
    """The changes of one seed, in order. `numbers` are the highest numbers of changes that any process had."""

    def __init__(self, world: SeededWorld, first: Mapping[str, int]) -> None:
        self.world, self.first = world, dict(first)
        self.changes = [NameChange(name, value, -inf, -inf) for name, value in first.items()]
        self.numbers: dict[str, int] = {}

    def begin(self, name: str, value: int | None) -> NameChange:
        self.changes.append(NameChange(name, value, self.world.now()))
        return self.changes[-1]

    def of(self, name: str) -> list[NameChange]:
        return [NameChange(name, None, -inf, -inf), *(one for one in self.changes if one.name == name)]

    def may_be(self, name: str, since: float, until: float, late: float) -> set[int | None]:
        """Return the values for which a name may have stood at some time between these two, where proxies hear so late
        of changes."""
        own, found = self.of(name), set[int | None]()
        for place, one in enumerate(own):
            ends = min((later.done_at for later in own[place + 1 :] if later.done_at is not None), default=inf)
            if one.asked <= until and since <= ends + late:
                found.add(one.value)
        return found

    def forget(self, name: str) -> None:
        """Note that all who knew of a name's last change have ended: it may stand for what it did before."""
        earlier = [self.first.get(name), *(one.value for one in self.of(name))]
        for value in dict.fromkeys(earlier):
            self.begin(name, value)

    def look(self, site: "SupervisedSite") -> None:
        """Note what nobody knows any more: where all processes have ended that knew a change, it is gone."""
        books = [one.worker.adapters.book for one in site.workers if one.worker is not None]
        books += [one.proxy.adapters.book for one in site.proxies if one.proxy is not None]
        known: dict[str, int] = {}
        for name, change in (pair for book in books for pair in book.changes.items()):
            known[name] = max(known.get(name, 0), change.number)
        for name, number in self.numbers.items():
            if known.get(name, 0) < number:
                self.forget(name)
        self.numbers = known
