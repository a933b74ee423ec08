# SPDX-License-Identifier: Apache-2.0
"""Releases: workers of one model that differ in its revision or in pontil's version, behind one proxy during an upgrade
(docs/decisions/065)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pontil.runtime.proxy.fleet.service_rate import HasSeats, Seats
from pontil.runtime.wire.messages import Hello


class WorkerRelease(NamedTuple):
    """The revision of a model, as the operator names it, and the version of pontil that computes it. A request stays
    within one: its tokens depend on both."""

    revision: str = ""
    version: str = ""

    @classmethod
    def of(cls, hello: Hello) -> "WorkerRelease":
        """Return what a worker runs. One of an earlier version says neither."""
        return cls(hello.revision or "", hello.version or "")


class ReleaseEnds:
    """The releases of which a worker `left` for good, and none has come since; and of all how many workers of each name
    are `missing`: they are gone otherwise, and may come back, or others under their names."""

    def __init__(self) -> None:
        self.left: set[WorkerRelease] = set()
        self.missing: Counter[tuple[WorkerRelease, str]] = Counter()

    def came(self, release: WorkerRelease, name: str) -> None:
        self.left.discard(release)
        self.missing -= Counter([(release, name)])

    def leaves(self, release: WorkerRelease, for_good: bool) -> None:
        if for_good:
            self.left.add(release)

    def went(self, release: WorkerRelease, name: str, for_good: bool) -> None:
        if not for_good:
            self.missing[release, name] += 1

    def is_over(self, release: WorkerRelease) -> bool:
        """Return whether no worker of it will come, beside those that are there."""
        return release in self.left and not any(missing_release == release for missing_release, _ in self.missing)


class ReleaseShares:
    """The requests of a group of workers by the release that they stay with: `bound` counts those that have not
    ended."""

    def __init__(self) -> None:
        self.bound: Counter[WorkerRelease] = Counter()

    def choose(self, groups: Mapping[WorkerRelease, Sequence[HasSeats]]) -> WorkerRelease | None:
        """Return the release for a new request: the one with the fewest requests for each seat of its workers, so that
        each has its part while workers of one come and those of another drain. Between equals the one that came
        last."""
        if len(groups) < 2:
            return next(iter(groups), None)
        return min(
            reversed(list(groups)),
            key=lambda release: (self.bound[release] + 1) / max(1, Seats.of(groups[release]).total),
        )

    def enter(self, release: WorkerRelease | None) -> None:
        if release is not None:
            self.bound[release] += 1

    def leave(self, release: WorkerRelease | None) -> None:
        if release is not None:
            self.bound[release] -= 1
            if not self.bound[release]:
                del self.bound[release]
