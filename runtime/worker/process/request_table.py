# SPDX-License-Identifier: Apache-2.0
"""The requests of a worker, and the single path by which each of them is removed."""

from collections.abc import Iterable, Iterator, Mapping

from pontil.runtime.wire.messages import Progress
from pontil.runtime.worker.links.proxy_link import Failure
from pontil.runtime.worker.links.proxy_links import ProxyLinks
from pontil.runtime.worker.process.proxy_shares import ProxyShares
from pontil.runtime.worker.process.worker_request import FirstAdmissions, WorkerRequest


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
        if request.key in self.request:
            self.shares.choices_left(request, count)

    def tell_progress(self, requests: Iterable[WorkerRequest]) -> None:
        """Report the progress of their prompts to the proxy."""
        for request in requests:
            address = self.incarnation, request.proxy, request.request_id, request.attempt
            self.link.send(Progress(*address, request.sequence.computed, request.cached))
