# SPDX-License-Identifier: Apache-2.0
"""A worker's links to all proxies of its system (docs/decisions/061).

Each proxy is told of its own requests only, in one stream of messages per proxy, so that its ledger can be compared
with what the worker states to it. A proxy that is gone takes only its own requests with it.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from pontil.runtime.errors import IncompatiblePeer, PontilError
from pontil.runtime.timeline.work_times import WorkTimes, between
from pontil.runtime.wire.links.connection_monitor import HANDSHAKE_TIMEOUT, ConnectionMonitor, Reachability
from pontil.runtime.wire.links.keys import is_network
from pontil.runtime.wire.links.outbox import PATIENCE
from pontil.runtime.wire.links.sockets import WorkerSocket
from pontil.runtime.wire.messages import AttemptTimes, Embed, Failed, Message, NodeTask, Submit, Tokens
from pontil.runtime.worker.links.log_fields import about
from pontil.runtime.worker.links.proxy_link import Failure, HeartbeatLoad, ProxyLink

# Reports that wait for a proxy that takes no message now; of more the oldest are lost.
MOST_WAITING = 256


@dataclass(frozen=True, slots=True)
class WaitingReport:
    """A report about an attempt that arrived here at `arrived`."""

    arrived: float
    message: AttemptTimes


class TimesReporter:
    """The reports of one worker, each sent at once if its proxy takes it. None holds up a token: one that a socket does
    not take waits here, and not among the messages that have to arrive. `link_of` returns the link to a proxy."""

    def __init__(self, link_of: Callable[[str], ProxyLink | None]) -> None:
        self.link_of = link_of
        self.waiting: deque[WaitingReport] = deque(maxlen=MOST_WAITING)

    def ended(self, proxy: str, request_id: str, attempt: int, arrived: float, times: WorkTimes) -> None:
        """Tell a proxy of an attempt that has ended here, unless it is gone or takes no reports."""
        link = self.link_of(proxy)
        if link is None or link.proxy != proxy or not link.takes_times:
            return
        empty = AttemptTimes(link.hello.sender, proxy, request_id, attempt, time.monotonic() - arrived)
        self.waiting.append(WaitingReport(arrived, report(empty, arrived, times)))
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as it is taken: a proxy that takes nothing now holds up no other. What a proxy that
        is gone was to get is dropped."""
        full: set[str] = set()
        for _ in range(len(self.waiting)):
            one = self.waiting.popleft()
            if one.message.receiver in full or not self.is_done(one):
                full.add(one.message.receiver)
                self.waiting.append(one)

    def is_done(self, one: WaitingReport) -> bool:
        proxy = one.message.receiver
        link = self.link_of(proxy)
        if link is None or link.proxy != proxy:
            return True
        return link.offer(replace(one.message, age=max(one.message.age, time.monotonic() - one.arrived)))


def report(message: AttemptTimes, arrived: float, times: WorkTimes) -> AttemptTimes:
    """Return the message with these times, none of them outside of its age."""
    age = message.age

    def since(at: float | None) -> float | None:
        return None if at is None else between(at - arrived, age)

    computed, released = since(times.computed), since(times.released)
    handoff = [] if computed is None or released is None else [computed, max(computed, released)]
    return replace(
        message,
        scheduled=since(times.scheduled),
        chunks=times.chunks.since(arrived, age),
        pulls=times.pulls.since(arrived, age),
        handoff=handoff,
        preempted=[between(at - arrived, age) for at in times.preempted],
        first_token=since(times.first),
        last_token=since(times.last),
    )


logger = logging.getLogger("pontil.worker")

# Seconds that a worker waits for the other proxies once one has welcomed it: one of them may be down for long.
COMPANY = 5.0


class ProxyReachability:
    """A watch on the connection to `endpoint`. Of a proxy on the same host nothing is reported: its supervisor does.
    `told` is the last report.

    A worker whose keys differ from the proxy's at the start is misconfigured and ends. If they matched before, the
    proxy has new keys now: the worker ends too, and the supervisor restarts it with the keys that the file has then. A
    worker waits for a proxy that does not answer, since the parts of a system may start in any order.
    """

    def __init__(self, connection: ConnectionMonitor, endpoint: str) -> None:
        self.connection, self.endpoint = connection, endpoint
        self.is_elsewhere = is_network(endpoint)
        self.told = ""
        self.was_open = False

    def look(self, now: float) -> bool:
        """Return whether there is something new to report. Raise PontilError when the proxy does not have the same
        keys."""
        if not self.is_elsewhere:
            return False
        self.connection.look(now)
        self.was_open = self.was_open or self.connection.state is Reachability.OPEN
        if self.connection.lasts(Reachability.REFUSED, now):
            raise (PontilError if self.was_open else IncompatiblePeer)(
                f"the proxy at {self.endpoint} does not accept this worker's keys: start both with the same --keys "
                "file, or both without"
            )
        away = self.connection.lasts(Reachability.AWAY, now)
        before = self.told
        self.told = self.absence if away else ""
        return away and not before

    @property
    def absence(self) -> str:
        return (
            f"the proxy at {self.endpoint} cannot be reached for {HANDSHAKE_TIMEOUT:.0f} s: check that it runs, the "
            "address, and that no firewall is between; still trying"
        )


class ProxyLinks:
    """The links in the order of the proxies' endpoints. A message goes to the proxy that its `receiver` names; one for
    a proxy that is gone is dropped. `times` reports where the time of attempts went. The worker drains since its model
    `goes_to_sleep`, if it does."""

    def __init__(self, links: Sequence[ProxyLink], sockets: Sequence[WorkerSocket] = ()) -> None:
        self.links, self.sockets = tuple(links), tuple(sockets)
        self.only = self.links[0] if len(self.links) == 1 else None
        reachable = [ProxyReachability(socket.connection, socket.endpoint) for socket in self.sockets]
        self.elsewhere = [one for one in reachable if one.is_elsewhere]
        self.times = TimesReporter(self.of)
        self.first_at: float | None = None
        self.goes_to_sleep = False
        for link in self.links if self.only is None else ():
            # A step has rows of all proxies: one that accepts nothing holds up the others' requests too.
            link.patience = PATIENCE

    @property
    def proxy(self) -> str | None:
        """The incarnation of a proxy that this worker is registered with, or None."""
        return next((link.proxy for link in self.links if link.proxy is not None), None)

    @property
    def proxies(self) -> int:
        """The number of proxies that this worker is registered with."""
        return sum(link.proxy is not None for link in self.links)

    @property
    def is_known(self) -> bool:
        """True if every proxy here has confirmed the current role."""
        return all(link.is_known for link in self.links)

    @property
    def congested(self) -> bool:
        if (only := self.only) is not None:
            return bool(only.outbox) and only.proxy is not None
        # Of a list, and without a property's call: it is asked several times in each turn.
        return bool([link for link in self.links if link.outbox and link.proxy is not None])

    def is_registered(self, now: float) -> bool:
        """Return whether the worker can be called ready: all proxies have welcomed it, or one has and the others did
        not come."""
        if self.first_at is None and self.proxy is not None:
            self.first_at = now
        late = self.first_at is not None and now - self.first_at > COMPANY
        return self.proxies == len(self.links) or (late and self.proxy is not None)

    def of(self, proxy: str) -> ProxyLink | None:
        """Return the link to the proxy of this incarnation. A worker of one proxy leaves it to that one to tell what is
        not meant for it."""
        if self.only is not None:
            return self.only
        # Asked for each token: a generator would take more calls than there are links.
        for link in self.links:
            if link.proxy == proxy:
                return link
        return None

    def receive_all(self) -> Iterator[tuple[ProxyLink, Message]]:
        """Yield what has arrived, with the link that it came by."""
        for link in self.links:
            for message in link.socket.receive_all():
                yield link, message

    def send(self, message: Message) -> None:
        link = self.of(getattr(message, "receiver", ""))
        if link is not None:
            link.send(message)

    def refuse(self, message: Submit | Embed | NodeTask, failure: Failure) -> None:
        """Report a failure to the proxy, also of a request that was never accepted."""
        level = logging.INFO if failure.moved else logging.WARNING
        logger.log(level, "request %s: %s", message.request_id, failure.reason, extra=about(message))
        address = message.receiver, message.sender, message.request_id, message.attempt
        self.send(Failed(*address, failure.reason, failure.status, failure.moved, failure.late))

    def send_tokens(self, frames: Sequence[Tokens]) -> None:
        """Send the tokens of one step, those of each proxy in one message where it takes that."""
        if self.only is not None:
            self.only.send_tokens(frames)
            return
        for link in self.links:
            if own := [frame for frame in frames if frame.receiver == link.proxy]:
                link.send_tokens(own)

    def flush(self) -> None:
        for link in self.links:
            link.flush()

    def look(self, now: float) -> str | None:
        """Return why a proxy cannot be reached, if that is news and no proxy is known. Raise PontilError as
        ProxyReachability does."""
        if not self.elsewhere:
            return None
        news = [one.told for one in self.elsewhere if one.look(now)]
        return news[0] if news and self.proxy is None else None

    def tick(self, load: Callable[[ProxyLink], HeartbeatLoad], now: float) -> list[str]:
        """Send what is due. Return the proxies that have been silent for too long, or are given up."""
        if self.times.waiting:
            self.times.flush()
        gone = list[str]()
        for link in self.links:
            if (proxy := link.tick(lambda link=link: load(link), now)) is not None:  # type: ignore[misc]
                gone.append(proxy)
        return gone

    def hurry(self) -> None:
        """Send the next heartbeats at once."""
        for link in self.links:
            link.hurry()

    def limit_seats(self, seats: int | None) -> None:
        for link in self.links:
            link.limit_seats(seats)

    def turn_to(self, role: str, draining: bool, *, sleeps: bool = False) -> None:
        self.goes_to_sleep = draining and sleeps
        for link in self.links:
            link.turn_to(role, draining)

    def goodbye(self, *, drained: bool, for_good: bool) -> None:
        for link in self.links:
            link.goodbye(drained=drained, for_good=for_good)
