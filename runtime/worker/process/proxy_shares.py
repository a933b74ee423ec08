# SPDX-License-Identifier: Apache-2.0
"""The work that each proxy has given to a worker, kept as it changes."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from pontil.runtime.worker.process.worker_request import WorkerRequest

# Requests that are looked at for one heartbeat. What is cached of a waiting prompt changes without it.
LOOKS = 128


@dataclass(slots=True)
class GivenWork:
    """Requests, their choices that have not ended, and prompt tokens to compute."""

    in_flight: int = 0
    taken: int = 0
    uncomputed: int = 0

    def add(self, choices: int, uncomputed: int, sign: int = 1) -> None:
        self.in_flight += sign
        self.taken += sign * choices
        self.uncomputed += sign * uncomputed


@dataclass(slots=True)
class OpenShare:
    """A request, its choices that have not ended here, and the prompt tokens that are counted as to be computed."""

    request: WorkerRequest
    choices: int
    uncomputed: int = 0


@dataclass(slots=True)
class ProxyShares:
    """The open requests, those that were looked at longest ago first. Conservation: `total` is the sum over them, and
    each proxy's work in `given` the sum over its own; a proxy without requests has none."""

    open: OrderedDict[str, OpenShare] = field(default_factory=OrderedDict)
    total: GivenWork = field(default_factory=GivenWork)
    given: dict[str, GivenWork] = field(default_factory=dict)

    def begin(self, request: WorkerRequest) -> None:
        share = self.open[request.key] = OpenShare(request, len(request.sequence.choices))
        for sums in (self.total, self.given.setdefault(request.proxy, GivenWork())):
            sums.add(share.choices, 0)

    def end(self, request: WorkerRequest) -> None:
        share, own = self.open.pop(request.key), self.given[request.proxy]
        for sums in (self.total, own):
            sums.add(share.choices, share.uncomputed, -1)
        if not own.in_flight:
            del self.given[request.proxy]

    def choice_ended(self, request: WorkerRequest) -> None:
        """Note that a choice has ended here: its own proxy, too, has its seat for another one now."""
        self.choices_left(request, self.open[request.key].choices - 1)

    def choices_left(self, request: WorkerRequest, count: int) -> None:
        """Note how many of its choices have not ended."""
        share = self.open[request.key]
        change, share.choices = count - share.choices, count
        for sums in (self.total, self.given[request.proxy]):
            sums.taken += change

    def next_few(self) -> Iterator[WorkerRequest]:
        """Yield the requests that were looked at longest ago."""
        for key, share in list(islice(self.open.items(), LOOKS)):
            self.open.move_to_end(key)
            yield share.request

    def count(self, request: WorkerRequest, uncomputed: int) -> None:
        """Note how many tokens of a request's prompt are to be computed."""
        share = self.open[request.key]
        change, share.uncomputed = uncomputed - share.uncomputed, uncomputed
        self.total.uncomputed += change
        self.given[request.proxy].uncomputed += change

    def beside(self, proxy: str | None) -> GivenWork:
        """Return the work of all other proxies."""
        own = self.given.get(proxy or "", GivenWork())
        total = self.total
        return GivenWork(total.in_flight - own.in_flight, total.taken - own.taken, total.uncomputed - own.uncomputed)
