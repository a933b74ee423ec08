# SPDX-License-Identifier: Apache-2.0
"""The adapters for which names may stand at a time, by what an operator asked for and was told: the oracle."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from served_proxy import ProxyProcess
from virtual_time import SeededWorld

from pontil.runtime.wire.adapter_book import AdapterBook
from pontil.runtime.wire.simulated.processes import WorldProcess
from pontil.runtime.worker.generate.worker import Worker

if TYPE_CHECKING:
    from supervised_site import SupervisedSite

# The value of a name whose adapter no worker can load.
UNREADABLE = -1
# Seconds in which all proxies hear of a change that is answered, where nothing is amiss; and else.
HEARD_WITHIN, HEARD_LATE = 0.5, 1.0
# Seconds before and after a look at a proxy that is cut off in which it may have been so too. A new one waits for
# workers that know more, from the first one that it meets: it is not cut off before.
CUT_OFF, MEETS_WITHIN = 0.25, 1.75


@dataclass(slots=True)
class NameChange:
    """A change of a name: that it stands for the adapter of this value from now on; None: for nothing. `done_at`
    is when that was confirmed, if it was, and `over_at` when it stands for that no more whatever comes. One of a
    `proxy` is so there alone."""

    name: str
    value: int | None
    asked: float
    done_at: float | None = None
    over_at: float = inf
    proxy: WorldProcess | None = None


class AdapterHistory:
    """The changes of one seed, in order. `numbers` are the highest numbers of changes that any process had, `met_at`
    when each proxy was first seen with a worker."""

    def __init__(self, world: SeededWorld, first: Mapping[str, int]) -> None:
        self.world, self.first = world, dict(first)
        self.changes = [NameChange(name, value, -inf, -inf) for name, value in first.items()]
        self.numbers: dict[str, int] = {}
        self.met_at: dict[ProxyProcess, float] = {}
        self.looked_at = -inf

    def begin(self, name: str, value: int | None) -> NameChange:
        self.changes.append(NameChange(name, value, self.world.now()))
        return self.changes[-1]

    def of(self, name: str) -> list[NameChange]:
        return [NameChange(name, None, -inf, -inf), *(one for one in self.changes if one.name == name)]

    def may_be(self, name: str, span: tuple[float, float], late: float, proxy: WorldProcess | None) -> set[int | None]:
        """Return the values for which a name may have stood at some time between two at a proxy, where proxies hear so
        late of changes."""
        since, until = span
        own, found = [one for one in self.of(name) if one.proxy in (None, proxy)], set[int | None]()
        for place, one in enumerate(own):
            ends = min((later.done_at for later in own[place + 1 :] if later.done_at is not None), default=inf)
            if one.asked <= until and since <= min(ends, one.over_at) + late:
                found.add(one.value)
        return found

    def earlier(self, name: str) -> Iterable[int | None]:
        return dict.fromkeys([self.first.get(name), *(one.value for one in self.of(name))])

    def forget(self, name: str) -> None:
        """Note that all who knew of a name's last change have ended: it may stand for what it did before."""
        for value in self.earlier(name):
            self.begin(name, value)

    def lag(self, name: str, proxy: ProxyProcess) -> None:
        """Note that a proxy cannot hear of a name's last change now: there it may stand for what it did before."""
        begins, ends = self.world.now() - CUT_OFF, self.world.now() + CUT_OFF
        self.changes += [NameChange(name, value, begins, None, ends, proxy) for value in self.earlier(name)]

    def look(self, site: "SupervisedSite") -> None:
        """Note what nobody knows any more: where all processes have ended that knew a change, it is gone. A process may
        have begun to know it and ended between two looks."""
        living, last = [*site.proxies, *site.workers], self.looked_at
        self.looked_at = self.world.now()
        known = highest(living)
        ended = highest(one for one in self.world.processes if one.ends is not None and one.ends >= last)
        for name, number in merged(self.numbers, ended).items():
            if known.get(name, 0) < number:
                self.forget(name)
        for proxy in site.proxies:
            if proxy.proxy is not None and proxy.proxy.registry.generating.workers:
                self.met_at.setdefault(proxy, self.looked_at)
            for name, number in known.items():
                if self.is_cut_off(proxy, name, number, living):
                    self.lag(name, proxy)
        self.numbers = known

    def is_cut_off(self, proxy: ProxyProcess, name: str, number: int, others: Iterable[WorldProcess]) -> bool:
        """Return whether a proxy with workers has not heard of a change, and none of those can tell it."""
        if proxy.proxy is None:
            return False
        known = {one.hello.pid for one in proxy.proxy.registry.generating.workers}
        if not known or self.world.now() - self.met_at[proxy] < MEETS_WITHIN or number_of(proxy, name) >= number:
            return False
        return not any(
            one.pid in known
            and number_of(one, name) >= number
            and one.stopped_at is None
            and not self.world.network.is_silent(proxy.name, one.name)
            for one in others
        )


def book_of(process: WorldProcess) -> AdapterBook | None:
    """Return what a process knows, or knew when it ended."""
    if isinstance(process, ProxyProcess):
        return None if process.proxy is None else process.proxy.adapters.book
    worker = getattr(process, "worker", None)
    return worker.adapters.book if isinstance(worker, Worker) else None


def number_of(process: WorldProcess, name: str) -> int:
    book = book_of(process)
    return 0 if book is None or name not in book.changes else book.changes[name].number


def numbers_of(process: WorldProcess) -> Iterator[tuple[str, int]]:
    book = book_of(process)
    for name, change in () if book is None else book.changes.items():
        yield name, change.number


def merged(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}


def highest(processes: Iterable[WorldProcess]) -> dict[str, int]:
    """Return the highest number of a change of each name that one of these knows."""
    found: dict[str, int] = {}
    for name, number in (pair for process in processes for pair in numbers_of(process)):
        found[name] = max(found.get(name, 0), number)
    return found
