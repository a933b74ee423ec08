# SPDX-License-Identifier: Apache-2.0
"""The requests of a worker, and the single path by which each of them is removed."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from pontil.runtime.wire.messages import Progress
from pontil.runtime.worker.links.proxy_link import Failure
from pontil.runtime.worker.links.proxy_links import ProxyLinks
from pontil.runtime.worker.process.worker_request import FirstAdmissions, WorkerRequest

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
        # A request that gives way is in no other proxy's way.
        choices = 0 if request.gives_way else len(request.sequence.choices)
        share = self.open[request.key] = OpenShare(request, choices)
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
        if not request.gives_way:
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


class RequestTable(Mapping[str, WorkerRequest]):
    """Attempts by their keys. Only `end` removes one: it remembers facts for a later attempt, and reports a failure to
    the proxy once."""

    def __init__(self, incarnation: str, link: ProxyLinks) -> None:
        self.incarnation, self.link = incarnation, link
        self.request: dict[str, WorkerRequest] = {}
        self.admissions = FirstAdmissions()
        self.shares = ProxyShares()

    def __getitem__(self, key: str) -> WorkerRequest:
        return self.request[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.request)

    def __len__(self) -> int:
        return len(self.request)

    def add(self, request: WorkerRequest) -> WorkerRequest:
        """Add an attempt; return it with the number of tokens that an earlier attempt found cached."""
        held = self.request[request.key] = self.admissions.recall(request)
        self.shares.begin(held)
        return held

    def end(self, key: str, failure: Failure | None = None) -> None:
        """Remove an attempt. One that is not here any more has ended before and is not reported again."""
        request = self.request.pop(key, None)
        if request is None:
            return
        self.shares.end(request)
        self.admissions.remember(request)
        self.link.times.ended(request.proxy, request.request_id, request.attempt, request.arrived, request.times)
        if failure is not None:
            self.link.refuse(request.submit, failure)

    def choices_left(self, request: WorkerRequest, count: int) -> None:
        """Note that all but so many choices of an attempt ended at the worker that computed its prompt."""
        if request.key in self.request and not request.gives_way:
            self.shares.choices_left(request, count)

    def tell_progress(self, requests: Iterable[WorkerRequest]) -> None:
        """Report the progress of their prompts to the proxy."""
        for request in requests:
            address = self.incarnation, request.proxy, request.request_id, request.attempt
            self.link.send(Progress(*address, request.sequence.computed, request.cached))
