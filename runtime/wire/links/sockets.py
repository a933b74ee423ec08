# SPDX-License-Identifier: Apache-2.0
"""The sockets between processes: a server routes to peers by incarnation, a client speaks to one server.

The proxy serves workers (`ControlServer`, `WorkerSocket`), a prefill worker serves decode workers (`PeerServer`,
`PeerClient`). A client's routing id on the wire is its incarnation, so a frame that claims another sender is dropped.

Threads: a socket belongs to the thread that made it, and every call comes from there. `Poller.wake` alone may be
called from any thread. No call blocks but `Poller.wait`.

Sending never loses a message silently (B12): False means that nothing was queued, because the peer's queue is full or
the peer is not connected, and the caller keeps the message and tries again or gives the request up. What does not
decode is counted in `malformed` and dropped, never fatal.
"""

import asyncio
import contextvars
import logging
import math
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import zmq

from pontil.runtime.config.worker_config import DEADLINES
from pontil.runtime.errors import MalformedFrame, PontilError
from pontil.runtime.threads import ThreadFailures
from pontil.runtime.wire.codec import MAX_FRAME_BYTES, decode, encode
from pontil.runtime.wire.links.connection_monitor import READABLE, ConnectionMonitor, Reachability
from pontil.runtime.wire.links.context import Context
from pontil.runtime.wire.links.keys import Keys
from pontil.runtime.wire.messages import Message


def is_ipv6(endpoint: str) -> bool:
    """Return whether an endpoint is an IPv6 address, or a name that has no other. May ask the resolver."""
    host = endpoint.removeprefix("tcp://").rpartition(":")[0]
    if not endpoint.startswith("tcp://") or host in ("", "*"):
        return False
    try:
        addresses = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(family == socket.AF_INET6 for family, *_ in addresses)


# Messages queued for one peer before send returns False, and read from one peer ahead of the reader.
HIGH_WATER_MARK = 8192
# Messages handled before other work of the same loop runs.
BATCH = 512
RECONNECT_MS = (50, 500)
LOG = logging.getLogger("pontil.wire")


def open_context(
    keys: Keys | None = None, failures: ThreadFailures | None = None, link_timeout: float = DEADLINES.link_timeout
) -> Context:
    """Open the zmq context: one for each process. With keys, its tcp endpoints accept only peers that have them; a tcp
    connection on which nothing comes for `link_timeout` is closed."""
    return Context(keys, failures, link_timeout)


class BaseSocket(ABC):
    """Base of client and server sockets. `malformed` counts dropped frames, `full` and `unreachable` sends that
    returned False. One that `is_stalled` reads and sends nothing. The last `receive_all` left some if it
    `may_have_more`."""

    def __init__(self, context: Context, kind: int, endpoint: str) -> None:
        self.context, self.kind, self.endpoint = context, kind, endpoint
        # Asked once: a resolver may take its time, and connections are replaced while others wait.
        self.speaks_ipv6 = is_ipv6(endpoint)
        self.zmq_socket = self.make_socket()
        self.poller: Poller | None = None
        self.is_stalled = self.may_have_more = False
        self.malformed = 0
        self.full = 0
        self.unreachable = 0

    def make_socket(self) -> "zmq.Socket[bytes]":
        """Return a new zmq socket for the endpoint."""
        zmq_socket = self.context.socket(self.kind)
        zmq_socket.setsockopt(zmq.LINGER, 0)
        zmq_socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        zmq_socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        zmq_socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        zmq_socket.setsockopt(zmq.IPV6, self.speaks_ipv6)
        self.context.watch_link(zmq_socket, self.endpoint)
        return zmq_socket

    def receive_all(self, limit: int = BATCH) -> list[Message]:
        """Return the messages that have arrived, oldest first, at most `limit` frames; the rest stays for the next
        call. In a turn of its poller, those that arrived since it began stay for the next turn."""
        messages: list[Message] = []
        self.may_have_more = False
        if self.is_stalled or (self.poller is not None and not self.poller.may_show(self.zmq_socket)):
            return messages
        for place in range(limit):
            try:
                parts = self.zmq_socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            try:
                messages.append(self.unpack(parts))
            except MalformedFrame as error:
                self.malformed += 1
                LOG.debug("dropped a frame of %s bytes: %s", [len(part) for part in parts], error)
            # Mostly one has come, and to ask costs less than to be told by an exception.
            if not place and not self.readable:
                return messages
        self.may_have_more = True
        return messages

    @abstractmethod
    def unpack(self, parts: list[bytes]) -> Message:
        """Return the message in a frame's parts. Raise MalformedFrame."""

    @property
    def readable(self) -> bool:
        return bool(int(self.zmq_socket.getsockopt(zmq.EVENTS)) & READABLE)

    def close(self, linger: float = 0.0) -> None:
        """Close the socket; queued messages are still sent for up to `linger` seconds, in the background."""
        self.zmq_socket.close(round(linger * 1000))

    def put(self, parts: list[bytes]) -> bool:
        try:
            if self.is_stalled:
                raise zmq.Again
            self.zmq_socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            self.full += 1
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self.unreachable += 1
            return False
        return True


class ClientSocket(BaseSocket):
    """A socket to one server, which need not be up yet: zmq connects, and reconnects, in the background. `connection`
    monitors its state."""

    def __init__(self, context: Context, incarnation: str, endpoint: str) -> None:
        super().__init__(context, zmq.DEALER, endpoint)
        self.incarnation = incarnation
        now = time.monotonic()
        self.connection = ConnectionMonitor(now)
        self.connect(now)

    def connect(self, now: float) -> None:
        self.zmq_socket.setsockopt(zmq.ROUTING_ID, self.incarnation.encode())
        self.zmq_socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS[0])
        self.zmq_socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS[1])
        self.context.guard_client(self.zmq_socket, self.endpoint)
        self.connection.watch(self.zmq_socket, now)
        try:
            self.zmq_socket.connect(self.endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise PontilError(f"cannot connect to {self.endpoint}: {error.strerror}; check the address") from None

    def renew(self, now: float) -> None:
        """Replace the connection by a new one. What was queued, and what came and was not read, is lost."""
        poller = self.poller
        if poller is not None:
            poller.unregister(self)
        self.connection.close()
        self.zmq_socket.close(0)
        self.zmq_socket = self.make_socket()
        self.connect(now)
        if poller is not None:
            poller.register(self)

    def breaks(self, now: float) -> int:
        """Return how often a connection of this socket has ended by itself so far. What was on its way then may be
        lost."""
        self.connection.look(now)
        return self.connection.breaks

    def close(self, linger: float = 0.0) -> None:
        self.connection.close()
        super().close(linger)

    def send(self, message: Message) -> bool:
        """Queue for the server; return False when the queue is full."""
        return self.put([encode(message)])

    def unpack(self, parts: list[bytes]) -> Message:
        if len(parts) != 1:
            raise MalformedFrame(f"a message of {len(parts)} parts")
        return decode(parts[0])


class ServerSocket(BaseSocket):
    """A socket bound at `endpoint` (its port chosen by the system, where it was left open); routes by
    `message.receiver`."""

    def __init__(self, context: Context, endpoint: str) -> None:
        super().__init__(context, zmq.ROUTER, endpoint)
        self.zmq_socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # A client that lost its connection returns under the same routing id before the old connection is given up.
        self.zmq_socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        context.guard_server(self.zmq_socket, endpoint)
        try:
            self.zmq_socket.bind(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise PontilError(f"cannot listen on {endpoint}: {error.strerror}; choose another address") from None
        self.endpoint = self.zmq_socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def send(self, message: Message) -> bool:
        """Queue for `message.receiver`; return False when its queue is full or it is not connected."""
        return self.send_frame(getattr(message, "receiver", ""), encode(message))

    def send_frame(self, receiver: str, frame: bytes) -> bool:
        """Queue a message that is encoded already, since it goes to several; as `send`."""
        return self.put([receiver.encode(), frame])

    def unpack(self, parts: list[bytes]) -> Message:
        if len(parts) != 2:
            raise MalformedFrame(f"a message of {len(parts)} parts")
        message = decode(parts[1])
        if message.sender.encode() != parts[0]:
            raise MalformedFrame(f"a {type(message).__name__} of {message.sender} came from {parts[0]!r:.40}")
        return message


class WorkerSocket(ClientSocket):
    """A worker's connection to the proxy's control endpoint."""

    def close(self, linger: float = 0.0) -> None:
        """Close the socket. Messages to a proxy that is gone are dropped: whichever comes next does not expect them."""
        self.connection.look(time.monotonic())
        super().close(linger if self.connection.state is Reachability.OPEN else 0.0)


class PeerClient(ClientSocket):
    """A decode worker's connection to one prefill worker."""


class PeerServer(ServerSocket):
    """A prefill worker's server socket for all decode workers."""


class ControlServer(ServerSocket):
    """The proxy's server socket for all workers, inside an asyncio event loop (any that has add_reader).

    zmq's descriptor signals only edges, and a send may consume one, so every send checks again for arrived messages.
    """

    def __init__(self, context: Context, endpoint: str) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.deliver: Callable[[list[Message]], None] | None = None
        self.again: asyncio.Handle | None = None
        # The context variables of what is delivered: not those of the request whose message was sent just before.
        self.variables: contextvars.Context | None = None
        super().__init__(context, endpoint)

    def listen(self, deliver: Callable[[list[Message]], None]) -> None:
        """Pass every batch that arrives to `deliver`, in the running loop's thread, until `close`."""
        self.deliver = deliver
        self.loop, self.variables = asyncio.get_running_loop(), contextvars.copy_context()
        self.loop.add_reader(int(self.zmq_socket.getsockopt(zmq.FD)), self.drain)
        self.look_again()

    def send(self, message: Message) -> bool:
        is_sent = super().send(message)
        if self.readable:
            self.look_again()
        return is_sent

    def look_again(self) -> None:
        if self.loop is not None and self.again is None:
            self.again = self.loop.call_soon(self.drain, context=self.variables)

    def drain(self) -> None:
        if self.again is not None:
            self.again.cancel()
            self.again = None
        messages = self.receive_all()
        if self.may_have_more:
            self.look_again()
        if messages and self.deliver is not None:
            self.deliver(messages)

    def close(self, linger: float = 0.0) -> None:
        if self.loop is not None:
            self.loop.remove_reader(int(self.zmq_socket.getsockopt(zmq.FD)))
            self.loop = None
        if self.again is not None:
            self.again.cancel()
            self.again = None
        super().close(linger)


def milliseconds(timeout: float) -> int:
    return math.ceil(timeout * 1000) if timeout > 0.0 else 0


class Poller:
    """A wait until a registered socket or watched descriptor is readable or `wake` is called."""

    def __init__(self) -> None:
        self.poller = zmq.Poller()
        self.wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.poller.register(self.wakeup, zmq.POLLIN)
        self.ready: set[Any] | None = None
        # True in a turn at whose beginning nothing was readable: then no socket has to be asked.
        self.is_quiet = False

    def register(self, socket: BaseSocket) -> None:
        socket.poller = self
        self.poller.register(socket.zmq_socket, zmq.POLLIN)

    def unregister(self, socket: BaseSocket) -> None:
        socket.poller = None
        self.poller.unregister(socket.zmq_socket)

    def watch(self, descriptor: int) -> None:
        """Also wait for a descriptor of the caller's, such as a pipe; `unwatch` it before it is closed."""
        self.poller.register(descriptor, zmq.POLLIN)

    def unwatch(self, descriptor: int) -> None:
        self.poller.unregister(descriptor)

    def wake(self) -> None:
        """End the current or the next `wait` at once. Any thread may call this, until `close`."""
        os.eventfd_write(self.wakeup, 1)

    def wait(self, timeout: float | None) -> bool:
        """Return whether anything happened within `timeout` seconds (None: without limit). Several wake-ups count as
        one."""
        return bool(self.found(timeout))

    def found(self, timeout: float | None) -> set[Any]:
        """Wait as `wait` does; return the zmq sockets and descriptors that are readable."""
        ready = {source for source, _ in self.poller.poll(None if timeout is None else milliseconds(timeout))}
        if self.wakeup in ready:
            os.eventfd_read(self.wakeup)
        return ready

    def begin_turn(self, timeout: float | None) -> None:
        """Wait, and ask until `end_turn` only what was readable then: asking each socket of a worker for nothing takes
        longer than a wait for all."""
        self.ready = self.found(timeout)
        self.is_quiet = not self.ready

    def end_turn(self) -> None:
        self.ready, self.is_quiet = None, False

    def may_show(self, source: Any) -> bool:
        """Return whether a zmq socket or a descriptor may be readable, as far as the turn knows."""
        return self.ready is None or source in self.ready

    def close(self) -> None:
        os.close(self.wakeup)
