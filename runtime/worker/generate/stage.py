# SPDX-License-Identifier: Apache-2.0
"""A generating worker's view of the stage that it computes of a model of several stages, if it does."""

from collections.abc import Container, Iterable
from typing import Protocol

from pontil.runtime.engine.engine import Output
from pontil.runtime.foundation.entry_points import entry_point
from pontil.runtime.wire.links.sockets import PeerServer
from pontil.runtime.wire.messages import Message, Submit
from pontil.runtime.worker.links.proxy_links import ProxyLinks
from pontil.runtime.worker.links.worker_sockets import WorkerSockets
from pontil.runtime.worker.process.worker_request import WorkerRequest, make_request
from pontil.runtime.worker.start.assembly import WorkerResources


class WorkerStage(Protocol):
    """The streams between the sequences of this worker and other stages."""

    @property
    def is_idle(self) -> bool:
        """True if no run needs this worker: no request is open, and no item is kept."""

    @property
    def seats(self) -> int | None:
        """The number of runs whose items can all be kept here; None: without limit."""

    def make_request(self, submit: Submit) -> WorkerRequest:
        """Build a request. Raises RequestError."""

    def begin(self, request: WorkerRequest, now: float) -> bool:
        """Open the streams of a request that has just been made. Return whether it is to be computed."""

    def take(self, message: Message, now: float) -> bool:
        """Handle a message about streams; return whether it was one."""

    def after(self, outputs: Iterable[Output], now: float) -> None:
        """Stream what a step has accepted, and end the streams of sequences that have ended."""

    def keep_only(self, keys: Container[str], now: float) -> None:
        """Close the streams of requests that are no longer open."""

    def tick(self, now: float) -> list[tuple[str, str]]:
        """Send and receive; return requests that cannot go on, with reasons."""

    def orphan(self, now: float) -> None:
        """Let go of every item that is kept, since nobody releases it any more."""

    def counters(self) -> dict[str, int]: ...

    def gauges(self) -> dict[str, int] | None: ...

    def end(self) -> None: ...


class NoStage:
    """The stage of a worker whose model has only one: it does nothing."""

    is_idle = True
    seats = None

    def __init__(self, machine: WorkerResources) -> None:
        self.machine = machine

    def make_request(self, submit: Submit) -> WorkerRequest:
        return make_request(submit, self.machine)

    def begin(self, request: WorkerRequest, now: float) -> bool:
        return True

    def take(self, message: Message, now: float) -> bool:
        return False

    def after(self, outputs: Iterable[Output], now: float) -> None:
        return

    def keep_only(self, keys: Container[str], now: float) -> None:
        return

    def tick(self, now: float) -> list[tuple[str, str]]:
        return []

    def orphan(self, now: float) -> None:
        return

    def counters(self) -> dict[str, int]:
        return {}

    def gauges(self) -> dict[str, int] | None:
        return None

    def end(self) -> None:
        return


def open_stage(machine: WorkerResources, link: ProxyLinks, sockets: WorkerSockets, peers_in: PeerServer) -> WorkerStage:
    """Open the streams of a worker's stage, where its model has several."""
    if sockets.config.graph is None or sockets.config.node is None:
        return NoStage(machine)
    stage: WorkerStage = entry_point("stage")(machine, link, sockets, peers_in)
    return stage
