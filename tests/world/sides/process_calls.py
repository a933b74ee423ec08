# SPDX-License-Identifier: Apache-2.0
"""Calls that a scenario has a process make: the same code in a process of Linux and in one of the world. Sockets are
named by the scenario; errors are told by the names of their numbers."""

import selectors
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import zmq
from linux_calls import LinuxCalls, named
from zmq.utils.monitor import recv_monitor_message

from pontil.runtime.errors import PontilError
from pontil.runtime.wire.links import sockets
from pontil.runtime.wire.links.connection_monitor import EVENTS, READABLE, ConnectionMonitor
from pontil.runtime.wire.links.keys import Keys
from pontil.runtime.wire.links.sockets import HIGH_WATER_MARK, BaseSocket, PeerClient, PeerServer, open_context

# All events of a connection that both sides have.
EVERY_EVENT = EVENTS | zmq.EVENT_CONNECTED | zmq.EVENT_CONNECT_RETRIED
# Seconds until a silent link over tcp counts as cut.
LINK_TIMEOUT = 1.0


class WideMonitor(ConnectionMonitor):
    """A monitor of the events of a mask."""

    def __init__(self, now: float, mask: int) -> None:
        super().__init__(now)
        self.mask = mask

    def watch(self, socket: "zmq.Socket[bytes]", now: float) -> None:
        self.socket, self.events = socket, socket.get_monitor_socket(self.mask)


class WideClient(PeerClient):
    """A client with the product's options that hears of every event."""

    def connect(self, now: float) -> None:
        self.connection = WideMonitor(now, EVERY_EVENT)
        super().connect(now)


class ProcessCalls(LinuxCalls):
    """The calls of one process. `selector` makes one that waits for descriptors."""

    def __init__(self, selector: Callable[[], selectors.BaseSelector]) -> None:
        super().__init__()
        self.selector = selector
        self.context = open_context(link_timeout=LINK_TIMEOUT)
        self.sockets: dict[str, BaseSocket] = {}

    def hold_keys(self, secret: str, own: str) -> None:
        """Have the sockets made from now on use the keys of a system, or with another `own` secret only show its
        server's."""
        keys = Keys.of(secret)
        keys = keys if own == secret else replace(keys, client=Keys.of(own).client)
        self.context = open_context(keys, link_timeout=LINK_TIMEOUT)

    def rejected(self) -> int:
        """Return how many clients the authenticator has refused."""
        return 0 if self.context.authenticator is None else self.context.authenticator.rejected

    def serve(self, name: str, endpoint: str, room: int = HIGH_WATER_MARK) -> str:
        """Bind a ROUTER, with a queue of so many messages; return its endpoint or an error."""
        try:
            with patch.object(sockets, "HIGH_WATER_MARK", room):
                made = self.sockets[name] = PeerServer(self.context, endpoint)
        except PontilError as error:
            return str(error)
        return made.endpoint

    def connect(self, name: str, endpoint: str, identity: str, wide: bool = False, room: int = HIGH_WATER_MARK) -> None:
        make = WideClient if wide else PeerClient
        with patch.object(sockets, "HIGH_WATER_MARK", room):
            self.sockets[name] = make(self.context, identity, endpoint)

    def send(self, name: str, *parts: str) -> str:
        socket = self.sockets[name].zmq_socket
        return named(lambda: socket.send_multipart([part.encode() for part in parts], zmq.NOBLOCK))

    def send_many(self, name: str, count: int, *head: str, size: int = 0) -> int:
        """Send numbered messages until one is refused, at most so many; return how many were taken."""
        socket, parts = self.sockets[name].zmq_socket, [part.encode() for part in head]
        for number in range(count):
            try:
                socket.send_multipart([*parts, str(number).encode().ljust(size)], zmq.NOBLOCK)
            except zmq.ZMQError:
                return number
        return count

    def compute_and_tell(self, until: str, name: str, epoch: int) -> None:
        """Compute, then set an epoch, then send a word."""
        self.compute(until)
        self.set_epoch(epoch)
        self.send(name, "computed")

    def receive(self, name: str, most: int = 1 << 20) -> list[list[str]]:
        """Return the messages that have come, at most so many."""
        socket, found = self.sockets[name].zmq_socket, list[list[str]]()
        while len(found) < most:
            try:
                found.append([part.decode().rstrip() for part in socket.recv_multipart(zmq.NOBLOCK)])
            except zmq.Again:
                break
        return found

    def readable(self, name: str) -> bool:
        return self.sockets[name].readable

    def close(self, name: str, linger: float = 0.0) -> None:
        self.sockets.pop(name).close(linger)

    def events(self, name: str) -> list[str]:
        """Return the events of a client's connection since the last call; of a pause, with its milliseconds."""
        socket = self.sockets[name]
        assert isinstance(socket, PeerClient)
        found, monitor = list[str](), socket.connection.events
        assert monitor is not None
        while int(monitor.getsockopt(zmq.EVENTS)) & READABLE:
            told = recv_monitor_message(monitor)
            event = zmq.Event(told["event"])
            found.append(f"{event.name} {told['value']}" if event is zmq.EVENT_CONNECT_RETRIED else str(event.name))
        return found

    def edge(self, name: str) -> bool:
        """Return whether the socket's descriptor shows anything."""
        descriptor = int(self.sockets[name].zmq_socket.getsockopt(zmq.FD))
        with self.selector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            return bool(selector.select(0))
