# SPDX-License-Identifier: Apache-2.0
"""zmq's sockets in the world: DEALERs that connect to ROUTERs over links with latency, in order, that can be cut.

As in libzmq: a DEALER queues while it is not connected, and connects again; a ROUTER refuses what is for nobody
(EHOSTUNREACH), and of two connections with one routing id the later takes over; `zmq.FD` shows edges, which a send may
consume; a monitor tells of connections. docs/internals/world.md lists the differences.
"""

import errno
import hashlib
import select
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

import zmq
from fibres import FibreProcess
from processes import WorldProcess
from virtual_time import HERE, SeededWorld

# Seconds on the way; one message in five takes so much longer on average.
LATENCY, JITTER, JITTERY = 60e-6, 0.5e-3, 0.2
# Seconds until a first attempt to connect again, and at most.
RECONNECT = (0.05, 0.5)
# Seconds without a sign of life, after which both ends take a link for cut.
LINK_TIMEOUT = 5.0
FIRST_DESCRIPTOR = 1_000_000
# Plain numbers: operators of zmq's enumerations are slow. And made once: every empty socket that is read raises it.
READABLE, WRITABLE = int(zmq.POLLIN), int(zmq.POLLOUT)
NOTHING_THERE = zmq.Again()
TO_ROUTER, TO_DEALER = 0, 1


class WireLink:
    """One connection of a DEALER to a ROUTER."""

    def __init__(self, network: "WireNetwork", dealer: "WireSocket", router: "WireSocket") -> None:
        self.network, self.world = network, network.world
        self.ends = (router, dealer)
        self.open = True
        # True if what is on its way when the link breaks still arrives, for it had reached the other host's kernel.
        self.survives = False
        # By direction: the time of the last arrival, and what a silent direction holds back.
        self.arrivals = [0.0, 0.0]
        self.silent: list[list[tuple[Sequence[bytes], WorldProcess]] | None] = [None, None]

    def __repr__(self) -> str:
        return f"{self.ends[TO_DEALER].process}-{self.ends[TO_ROUTER].process}"

    def carry(self, way: int, parts: Sequence[bytes], sender: WorldProcess) -> None:
        sender.acts(self.world.now(), lambda: self.leave(way, parts, sender), self.network.lose_one)

    def leave(self, way: int, parts: Sequence[bytes], sender: WorldProcess) -> None:
        held = self.silent[way]
        if held is not None:
            held.append((parts, sender))
            return
        chance = self.network.chance
        delay = LATENCY + (chance.expovariate(1 / JITTER) if chance.random() < JITTERY else 0.0)
        when = max(self.world.now() + delay, self.arrivals[way] + 1e-7)
        self.arrivals[way] = when
        self.world.at(when, lambda: self.arrive(way, parts, sender))

    def arrive(self, way: int, parts: Sequence[bytes], sender: WorldProcess) -> None:
        target = self.ends[way]
        if target.closed or (not self.open and not self.survives):
            self.network.lose_one()
            return
        held = self.silent[way]
        if held is not None:
            held.append((parts, sender))
            return
        self.network.carried += 1
        digest = hashlib.blake2b(b"\0".join(parts), digest_size=6).hexdigest()
        self.world.note("msg", sender.name, target.process.name, digest)
        target.take(parts if way == TO_DEALER else [self.ends[TO_DEALER].identity, *parts])

    def silence(self, way: int) -> None:
        """Let nothing through in one direction, and tell nobody."""
        if self.silent[way] is None:
            self.silent[way] = []
            self.world.note("silent", self, way)

    def mend(self, way: int) -> None:
        held, self.silent[way] = self.silent[way], None
        for parts, sender in held or () if self.open else ():
            self.leave(way, parts, sender)

    def cut(self, survives: bool = False) -> None:
        """Break the connection: both ends notice a little later, one before the other."""
        if not self.open:
            return
        self.world.note("cut", self)
        self.open, self.survives = False, survives
        for end in self.ends:
            delay = LATENCY + self.network.chance.random() * 0.002
            self.world.at(self.world.now() + delay, partial(end.lose, self))


class WireMonitor:
    """The events of a DEALER's connection."""

    def __init__(self) -> None:
        self.events: deque[int] = deque()

    def getsockopt(self, option: int) -> int:
        return READABLE if self.events else 0

    def close(self, linger: int = 0) -> None:
        self.events.clear()


def recv_monitor_message(monitor: WireMonitor) -> dict[str, Any]:
    return {"event": monitor.events.popleft()}


class WireNetwork:
    """All sockets of the world. `carried` and `lost` count messages."""

    def __init__(self, world: SeededWorld) -> None:
        self.world, self.chance = world, world.random("network")
        self.bound: dict[str, WireSocket] = {}
        self.links: list[WireLink] = []
        self.descriptors = FIRST_DESCRIPTOR
        self.carried = self.lost = 0
        # Pairs of names of processes that cannot connect to each other at present, one to the other.
        self.unreachable: set[tuple[str, str]] = set()

    def lose_one(self) -> None:
        self.lost += 1

    def open_links(self) -> list[WireLink]:
        self.links = [link for link in self.links if link.open]
        return self.links


class WireSocket:
    """A ROUTER or a DEALER of one process."""

    def __init__(self, network: WireNetwork, process: WorldProcess, kind: int) -> None:
        self.network, self.world, self.process, self.kind = network, network.world, process, kind
        network.descriptors += 1
        self.fd = network.descriptors
        self.inbox: deque[Sequence[bytes]] = deque()
        self.closed = self.signaled = False
        self.endpoint, self.identity = "", b""
        self.link: WireLink | None = None
        self.waiting: list[Sequence[bytes]] = []
        self.monitor: WireMonitor | None = None
        self.pause = RECONNECT[0]
        self.links: dict[bytes, WireLink] = {}
        process.sockets.append(self)

    def setsockopt(self, option: int, value: Any) -> None:
        if option == zmq.ROUTING_ID:
            self.identity = value

    def getsockopt(self, option: int) -> int:
        if option == zmq.FD:
            return self.fd
        assert option == zmq.EVENTS, f"the world knows no option {option}"
        self.signaled = False
        return READABLE | WRITABLE if self.inbox else WRITABLE

    def getsockopt_string(self, option: int) -> str:
        return self.endpoint

    def get_monitor_socket(self, events: int) -> WireMonitor:
        self.monitor = WireMonitor()
        return self.monitor

    def disable_monitor(self) -> None:
        self.monitor = None

    def bind(self, endpoint: str) -> None:
        before = self.network.bound.get(endpoint)
        if before is not None and not before.closed:
            raise zmq.ZMQError(errno.EADDRINUSE)
        self.endpoint = endpoint
        self.network.bound[endpoint] = self

    def connect(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.process.acts(self.world.now() + LATENCY, self.reach)

    def reach(self) -> None:
        """Try to connect, and go on trying."""
        if self.closed or (self.link is not None and self.link.open):
            return
        server = self.network.bound.get(self.endpoint)
        if server is None or server.closed or not self.may_reach(server):
            self.tell(zmq.EVENT_CLOSED)
            self.world.at(self.world.time + self.pause * (1 + self.network.chance.random()), self.reach)
            self.pause = min(RECONNECT[1], 2 * self.pause)
            return
        self.pause = RECONNECT[0]
        self.link = WireLink(self.network, self, server)
        self.network.links.append(self.link)
        self.world.note("connect", self.link)
        server.accept(self.identity, self.link)
        self.world.at(self.world.time + 2 * LATENCY, lambda: self.tell(zmq.EVENT_HANDSHAKE_SUCCEEDED))
        waiting, self.waiting = self.waiting, []
        for parts in waiting:
            self.link.leave(TO_ROUTER, parts, self.process)

    def may_reach(self, server: "WireSocket") -> bool:
        names = self.process.name, server.process.name
        return not {names, names[::-1]} & self.network.unreachable

    def accept(self, identity: bytes, link: WireLink) -> None:
        """Serve a new connection. An earlier one with this id is handed over (ROUTER_HANDOVER)."""
        before = self.links.get(identity)
        self.links[identity] = link
        if before is not None:
            before.cut(survives=True)

    def tell(self, event: int) -> None:
        if self.monitor is not None:
            self.monitor.events.append(event)

    def take(self, parts: Sequence[bytes]) -> None:
        self.inbox.append(parts)
        self.signaled = True
        self.process.notify()

    def send_multipart(self, parts: Sequence[bytes], flags: int = 0) -> None:
        self.signaled = False
        if self.kind == zmq.ROUTER:
            link = self.links.get(parts[0])
            if link is None or not link.open:
                raise zmq.ZMQError(errno.EHOSTUNREACH)
            link.carry(TO_DEALER, parts[1:], self.process)
        elif self.link is None or not self.link.open:
            self.waiting.append(parts)
        else:
            self.link.carry(TO_ROUTER, parts, self.process)

    def recv_multipart(self, flags: int = 0) -> Sequence[bytes]:
        self.signaled = False
        if not self.inbox:
            raise NOTHING_THERE.with_traceback(None)
        return self.inbox.popleft()

    def close(self, linger: int = 0) -> None:
        """Close it in order: what was sent arrives."""
        self.leave(survives=True)

    def die(self) -> None:
        """End with the process: the kernel sends what it has, if the other end comes to read it."""
        self.leave(survives=self.network.chance.random() < 0.5)

    def leave(self, survives: bool) -> None:
        if self.closed:
            return
        self.closed = True
        self.process.sockets.remove(self)
        for link in [self.link] if self.link is not None else list(self.links.values()):
            if link.open:
                link.cut(survives)

    def lose(self, link: WireLink) -> None:
        """Notice that a connection has ended."""
        if self.closed:
            return
        if self.kind == zmq.ROUTER:
            identity = link.ends[TO_DEALER].identity
            if self.links.get(identity) is link:
                del self.links[identity]
        elif self.link is link:
            self.link = None
            self.tell(zmq.EVENT_DISCONNECTED)
            self.world.at(self.world.time + RECONNECT[0], self.reach)


class WireContext:
    """Stands for zmq.Context: one for each process that makes one."""

    def __init__(self, *given: object) -> None:
        assert HERE.world.current is not None, "sockets belong to a process"
        self.process = HERE.world.current

    def socket(self, kind: int) -> WireSocket:
        return WireSocket(HERE.world.network, self.process, kind)

    def term(self) -> None:
        return

    def destroy(self, linger: int = 0) -> None:
        for socket in list(self.process.sockets):
            socket.close()


class WirePoller:
    """Stands for zmq.Poller. Only a fibre waits in it: other processes take their next turn when something has come."""

    def __init__(self) -> None:
        self.sources: list[Any] = []

    def register(self, source: Any, flags: int = zmq.POLLIN) -> None:
        if source not in self.sources:
            self.sources.append(source)

    def unregister(self, source: Any) -> None:
        self.sources.remove(source)

    def poll(self, timeout: int | None = None) -> list[tuple[Any, int]]:
        if isinstance(process := HERE.world.current, FibreProcess):
            process.poll(self.ready, timeout)
        return self.ready()

    def ready(self) -> list[tuple[Any, int]]:
        wakeups = HERE.world.wakeups
        return [
            (one, READABLE)
            for one in self.sources
            if (one.inbox if not isinstance(one, int) else wakeups[one] if one in wakeups else is_readable(one))
        ]  # fmt: skip


def is_readable(descriptor: int) -> bool:
    """Return whether something has come by a pipe."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
