# SPDX-License-Identifier: Apache-2.0
"""A worker's requests and what computes them, as its loop sees them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from pontil.runtime.wire.messages import Message
from pontil.runtime.worker.links.proxy_link import Failure, HeartbeatLoad, ProxyLink
from pontil.runtime.worker.links.proxy_links import ProxyLinks
from pontil.runtime.worker.links.worker_sockets import WorkerSockets
from pontil.runtime.worker.process.idle_work import IdleWork

NO_TRIALS: Mapping[str, Callable[[float], None]] = MappingProxyType({})


class Outlook(NamedTuple):
    """The state of a workload: whether a step has something to compute, whether nothing of any proxy's is left, the
    longest time in seconds until it needs a turn though nothing arrives, whether it is over for good, and whether other
    workers wait for this one at the end of its turn."""

    has_work: bool
    is_idle: bool
    patience: float
    is_over: bool = False
    is_awaited: bool = False


class Workload(ABC):
    """The requests of a worker and what computes them, over its sockets and the `link` to its proxies. `facts` are told
    with the report that the worker is ready. `trials` are faults that an operator may order, by the kind of command,
    each for so many seconds.

    The loop makes all calls from one thread, in each turn: `take` for every message of a proxy, `poll`, and `step` if
    there is work and the proxies take its results. Each leaves nothing unsaid that can be said.
    """

    def __init__(
        self,
        sockets: WorkerSockets,
        link: ProxyLinks,
        idle_work: IdleWork,
        facts: Mapping[str, object],
        trials: Mapping[str, Callable[[float], None]] = NO_TRIALS,
    ) -> None:
        self.sockets, self.link, self.idle_work, self.facts, self.trials = sockets, link, idle_work, facts, trials

    @abstractmethod
    def take(self, message: Message, now: float) -> bool:
        """Handle a message of a proxy; return False for one about the registration."""

    @abstractmethod
    def poll(self, now: float) -> None:
        """Handle what other workers and helper threads have sent, and end the requests that are late."""

    @abstractmethod
    def step(self, now: float) -> None:
        """Compute one step, and send its results."""

    def keep_up(self) -> None:
        """Take part in what other workers compute together with this one, once a turn, if any do. Raises
        GroupLeaves."""
        return

    @abstractmethod
    def drop(self, failure: Failure | None, proxy: str | None, now: float) -> int:
        """End all requests, or those of this proxy; return their number. With a failure their proxies are told, and
        others compute those that are `moved`. Without one there is nobody to tell: the proxy is gone."""

    @abstractmethod
    def outlook(self) -> Outlook:
        """Return the present state."""

    @abstractmethod
    def load(self, link: ProxyLink) -> HeartbeatLoad:
        """Return the load, for the heartbeat to the proxy of this link."""
