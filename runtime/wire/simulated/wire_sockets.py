# SPDX-License-Identifier: Apache-2.0
"""zmq's sockets in the world. They do as libzmq's do over ipc; docs/internals/world.md lists the differences, each with
a scenario that is played on both (sides/)."""

import errno
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any

import zmq

from pontil.runtime.wire.simulated.network import LATENCY, READABLE, TO_DEALER, TO_ROUTER, WireLink, WireNetwork
from pontil.runtime.wire.simulated.processes import WorldProcess
from pontil.runtime.wire.simulated.virtual_time import HERE

# Seconds until a first attempt to connect again, and at most; and those of one that nobody answers.
RECONNECT, CONNECT_TIMEOUT = (0.05, 0.5), 1.0
# Plain numbers: operators of zmq's enumerations are slow. And made once: every empty socket that is read raises it.
WRITABLE, EVENTS, DESCRIPTOR = int(zmq.POLLOUT), int(zmq.EVENTS), int(zmq.FD)
# Addresses that are reached over a network, and ports that stand for any free one.
NETWORK = "tcp:"
ANY_PORT = ("*", "0")
NOTHING_THERE, NO_ROOM = zmq.Again(), zmq.Again()


class WireMonitor:
    """The events of a DEALER's connection, as far as they were asked for."""

    def __init__(self, mask: int) -> None:
        self.mask = mask
        self.events: deque[dict[str, Any]] = deque()

    def getsockopt(self, option: int) -> int:
        return READABLE if self.events else 0

    def close(self, linger: int = 0) -> None:
        self.events.clear()


def recv_monitor_message(monitor: WireMonitor) -> dict[str, Any]:
    return monitor.events.popleft()


class WireSocket(ABC):
    """A socket of one process. `inbox` holds something while it has something to read; `signaled` is what its
    descriptor shows: an edge, which comes only after everything was read, and which every call may consume."""

    inbox: deque[Any]
    # A server's keys, and those of a client with the server's public one.
    curve_server, curve_secretkey, curve_publickey, curve_serverkey = False, b"", b"", b""

    def __init__(self, network: WireNetwork, process: WorldProcess) -> None:
        self.network, self.world, self.process = network, network.world, process
        network.descriptors += 1
        self.fd = network.descriptors
        self.inbox = deque()
        self.closed = self.signaled = False
        self.is_drained = True
        self.endpoint = ""
        self.options: dict[int, Any] = {zmq.SNDHWM: 1000, zmq.RCVHWM: 1000, zmq.LINGER: -1}
        process.sockets.append(self)

    def setsockopt(self, option: int, value: Any) -> None:
        is_limit = option in (zmq.SNDHWM, zmq.RCVHWM)
        self.options[option] = max(1, value // self.network.queues_shorter) if is_limit else value

    def setsockopt_string(self, option: int, value: str) -> None:
        self.options[option] = value

    def getsockopt(self, option: int) -> int:
        if option == EVENTS:
            self.signaled, self.is_drained = False, not self.inbox
            return READABLE | WRITABLE if self.inbox else WRITABLE
        assert option == DESCRIPTOR, f"the world knows no option {option}"
        return self.fd

    def getsockopt_string(self, option: int) -> str:
        return self.endpoint

    @abstractmethod
    def take(self, link: WireLink, parts: Sequence[bytes]) -> None:
        """Take what has come over a link."""

    @abstractmethod
    def lose(self, link: WireLink) -> None:
        """Notice that a connection has ended."""

    def came(self) -> None:
        self.signaled, self.is_drained = self.signaled or self.is_drained, False
        self.process.notify()

    def find_nothing(self) -> zmq.Again:
        self.is_drained = True
        return NOTHING_THERE.with_traceback(None)

    def close(self, linger: int | None = None) -> None:
        """Close it. Without a time to linger, the end of what was sent may be lost."""
        self.leave(survives=bool(self.options[zmq.LINGER] if linger is None else linger))

    def die(self) -> None:
        """End with the process: the kernel sends what it has, and libzmq nothing of the rest."""
        self.leave(survives=False)

    def leave(self, survives: bool) -> None:
        if self.closed:
            return
        self.closed = True
        self.process.sockets.remove(self)
        for link in self.network.open_links():
            if self in link.ends:
                link.cut(survives, self)


class RouterSocket(WireSocket):
    """A ROUTER. It reads its links in turn, one message of each."""

    inbox: deque[WireLink]

    def __init__(self, network: WireNetwork, process: WorldProcess) -> None:
        super().__init__(network, process)
        self.links: dict[bytes, WireLink] = {}

    def bind(self, endpoint: str) -> None:
        """Take over a socket file, whoever is bound to it; or a port, or any that is free."""
        host, _, port = endpoint.rpartition(":")
        if port in ANY_PORT and endpoint.startswith(NETWORK):
            self.network.ports += 1
            endpoint = f"{host}:{self.network.ports}"
        before = self.network.bound.get(endpoint)
        if before is not None and not before.closed and not endpoint.startswith("ipc:"):
            raise zmq.ZMQError(errno.EADDRINUSE)
        self.endpoint = endpoint
        self.network.bound[endpoint] = self

    def accept(self, link: WireLink) -> None:
        """Serve a new connection; an earlier one with this id is given up (ROUTER_HANDOVER)."""
        before = self.links.get(link.identity)
        self.links[link.identity] = link
        if before is not None:
            before.replace()

    def take(self, link: WireLink, parts: Sequence[bytes]) -> None:
        if not link.unread:
            self.inbox.append(link)
        link.unread.append(parts)
        self.came()

    def send_multipart(self, parts: Sequence[bytes], flags: int = 0) -> None:
        self.signaled = False
        link = self.links.get(parts[0])
        if link is None:
            raise zmq.ZMQError(errno.EHOSTUNREACH)
        if len(link.dealer.inbox) >= link.dealer.options[zmq.RCVHWM] + self.options[zmq.SNDHWM]:
            raise NO_ROOM.with_traceback(None)
        link.carry(TO_DEALER, parts[1:], self.process)

    def recv_multipart(self, flags: int = 0) -> Sequence[bytes]:
        self.signaled = False
        if not self.inbox:
            raise self.find_nothing()
        link = self.inbox.popleft()
        parts = link.unread.popleft()
        if link.unread:
            self.inbox.append(link)
        return [link.identity, *parts]

    def lose(self, link: WireLink) -> None:
        if self.links.get(link.identity) is link:
            del self.links[link.identity]


class DealerSocket(WireSocket):
    """A DEALER of one server. It queues while it is not connected, and connects again."""

    inbox: deque[Sequence[bytes]]

    def __init__(self, network: WireNetwork, process: WorldProcess) -> None:
        super().__init__(network, process)
        self.link: WireLink | None = None
        self.waiting: deque[Sequence[bytes]] = deque()
        self.monitor: WireMonitor | None = None
        self.pause = RECONNECT[0]

    @property
    def identity(self) -> bytes:
        identity: bytes = self.options[zmq.ROUTING_ID]
        return identity

    def get_monitor_socket(self, events: int) -> WireMonitor:
        self.monitor = WireMonitor(int(events))
        return self.monitor

    def disable_monitor(self) -> None:
        self.monitor = None

    def tell(self, event: int, value: int = 0) -> None:
        if self.monitor is not None and self.monitor.mask & event:
            self.monitor.events.append({"event": event, "value": value})

    def connect(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.process.acts(self.world.now() + LATENCY, self.reach)

    def reach(self) -> None:
        """Try to connect, and go on trying."""
        if self.closed:
            return
        server = self.network.bound.get(self.endpoint)
        if server is not None and not self.may_reach(server):
            self.process.acts(self.world.time + CONNECT_TIMEOUT, self.fail)
        elif server is None or server.closed:
            self.fail()
        else:
            self.pause = RECONNECT[0]
            self.link = WireLink(self.network, self, server)
            self.network.links.append(self.link)
            self.tell(zmq.EVENT_CONNECTED)
            server.process.acts(self.world.time + LATENCY, self.link.greet)

    def may_reach(self, server: RouterSocket) -> bool:
        return not (server.process.vanished or self.network.is_silent(self.process.name, server.process.name))

    def fail(self) -> None:
        self.tell(zmq.EVENT_CLOSED)
        self.try_again()

    def try_again(self) -> None:
        self.tell(zmq.EVENT_CONNECT_RETRIED, round(self.pause * 1000))
        self.process.acts(self.world.time + self.pause, self.reach)
        self.pause = min(RECONNECT[1], 2 * self.pause)

    def connected(self, link: WireLink) -> None:
        """Send what waits, now that the handshake is over."""
        self.tell(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        while self.waiting:
            link.leave(TO_ROUTER, self.waiting.popleft(), self.process)

    def take(self, link: WireLink, parts: Sequence[bytes]) -> None:
        self.inbox.append(parts)
        self.came()

    def send_multipart(self, parts: Sequence[bytes], flags: int = 0) -> None:
        self.signaled = False
        link, room = self.link, self.options[zmq.SNDHWM]
        if link is None or not link.works:
            if len(self.waiting) >= room:
                raise NO_ROOM.with_traceback(None)
            self.waiting.append(parts)
            return
        if len(link.unread) >= room + link.router.options[zmq.RCVHWM]:
            raise NO_ROOM.with_traceback(None)
        link.carry(TO_ROUTER, parts, self.process)

    def recv_multipart(self, flags: int = 0) -> Sequence[bytes]:
        self.signaled = False
        if not self.inbox:
            raise self.find_nothing()
        return self.inbox.popleft()

    def refused(self, link: WireLink, event: int, value: int) -> None:
        """Notice that the server does not accept it, and give up for good."""
        if not self.closed:
            self.link = None
            self.tell(event, value)
            self.tell(zmq.EVENT_DISCONNECTED)

    def lose(self, link: WireLink) -> None:
        if self.closed or self.link is not link:
            return
        self.link = None
        if not link.works:
            self.tell(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, errno.ECONNRESET)
        self.tell(zmq.EVENT_DISCONNECTED)
        self.try_again()


class WireContext:
    """Stands for zmq.Context: one for each process that makes one."""

    def __init__(self, *given: object) -> None:
        assert HERE.world.current is not None, "sockets belong to a process"
        self.process = HERE.world.current

    def socket(self, kind: int) -> Any:
        return (DealerSocket if kind == zmq.DEALER else RouterSocket)(HERE.world.network, self.process)

    def term(self) -> None:
        return

    def destroy(self, linger: int | None = None) -> None:
        for socket in list(self.process.sockets):
            socket.close(linger)
