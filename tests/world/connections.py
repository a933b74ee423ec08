# SPDX-License-Identifier: Apache-2.0
"""Connections of clients to proxies: bytes with latency, in order, and an end that both sides notice."""

import asyncio
from typing import Any, Protocol

from connection_buffers import SHORTER, Pace, PacedInbox, UnreadBytes, WriteBuffer
from virtual_time import SeededWorld

from pontil.runtime.wire.simulated.event_loop import LoopProcess

LATENCY = 80e-6
# The number of a client that is the operator.
OPERATOR = 60_000


class ConnectionUser(Protocol):
    """The client's side of a connection. It is told where its own pace holds up the answer, and for how long."""

    def received(self, data: bytes) -> None: ...

    def disconnected(self) -> None: ...

    def held_up(self, seconds: float) -> None: ...


class ClientConnection(asyncio.Transport):
    """One connection, as the transport of the proxy's protocol and as the client's socket. Only a client with a pace
    leaves bytes in the proxy's buffer."""

    def __init__(
        self, world: SeededWorld, process: LoopProcess, user: ConnectionUser, number: int, pace: Pace | None = None
    ) -> None:
        # An operator asks on the machine itself.
        peer = "127.0.0.1" if number == OPERATOR else f"10.0.0.{1 + number % 250}"
        super().__init__({"peername": (peer, 4000 + number), "sockname": ("127.0.0.1", 80)})
        self.world, self.process, self.user = world, process, user
        self.inbox = None if pace is None else PacedInbox(world, pace, self.taken, self.tell_end, user.held_up)
        self.buffer = WriteBuffer(self.put_on_the_way)
        self.unread = UnreadBytes(self.deliver, self.lose)
        self.arrival = 0.0
        self.closing = self.lost = self.left = self.ended = False
        assert process.loop.factory is not None, "the proxy does not listen yet"
        self.protocol: Any = None
        # Its place among those of the process.
        self.opened = world.now(), len(process.at_death)
        process.at_death.append(self.end)
        process.call(self.open)

    def open(self) -> None:
        """Accept the connection, in the proxy's loop."""
        assert self.process.loop.factory is not None
        self.protocol = self.buffer.protocol = self.process.loop.factory()
        self.protocol.connection_made(self)

    # The client's side.

    def send(self, data: bytes) -> None:
        self.world.after(LATENCY, lambda: self.process.call(self.unread.put, data))

    def shut(self) -> None:
        """Close the way to the proxy, and go on reading."""
        self.world.after(LATENCY, lambda: self.process.call(self.hear_shut))

    def leave(self) -> None:
        """Close it: the client wants no more."""
        if not self.left:
            self.left = True
            self.world.after(LATENCY, lambda: self.process.call(self.unread.put, None))

    def end(self) -> None:
        """End with the proxy's process: if that vanished with its host, the client hears of it when a host is there."""
        if not self.ended:
            self.ended = True
            if self.process.vanished:
                self.world.network.when_back.append((self.process, self.come_end))
            else:
                self.world.after(LATENCY, self.come_end)

    def come_end(self) -> None:
        if self.inbox is None:
            self.tell_end()
        else:
            self.inbox.end()

    def tell_end(self) -> None:
        if not self.left:
            self.left = True
            self.user.disconnected()

    def hear(self, data: bytes) -> None:
        if not self.left:
            self.user.received(data)

    def taken(self, piece: bytes) -> None:
        """Have the client hear a piece, and the proxy of the room that it leaves."""
        if not self.left:
            self.world.after(LATENCY, lambda: self.process.call(self.free, len(piece)))
            self.user.received(piece)

    # The proxy's side.

    def deliver(self, data: bytes) -> None:
        if not self.closing:
            self.protocol.data_received(data)

    def hear_shut(self) -> None:
        if not self.closing and not self.protocol.eof_received():
            self.close()

    def lose(self) -> None:
        if not self.lost:
            self.closing = self.lost = True
            self.buffer.bytes.clear()
            self.protocol.connection_lost(None)

    def write(self, data: Any) -> None:
        if self.closing:
            return
        if self.inbox is None:
            self.put_on_the_way(bytes(data))
        else:
            self.buffer.put(data)

    def free(self, count: int) -> None:
        if not self.lost:
            self.buffer.free(count)
            if self.closing and not self.buffer.bytes:
                self.tell_client()
                self.lose()

    def put_on_the_way(self, data: bytes) -> None:
        when = max(self.world.now() + LATENCY, self.arrival)
        self.arrival = when
        hear = self.hear if self.inbox is None else self.inbox.put
        self.process.acts(self.world.now(), lambda: self.world.at(when, lambda: hear(data)))

    def tell_client(self) -> None:
        """Have the client hear of the end behind all bytes."""
        when = max(self.world.now() + LATENCY, self.arrival)
        self.process.acts(self.world.now(), lambda: self.world.at(when, self.come_end))

    def close(self) -> None:
        """Close it once the buffer is empty."""
        if not self.closing:
            self.closing = True
            if not self.buffer.bytes:
                self.process.loop.call_soon(self.lose)
                self.tell_client()

    def abort(self) -> None:
        """Close it without what is in the buffer."""
        if not self.closing or self.buffer.bytes:
            self.closing = True
            self.buffer.bytes.clear()
            self.process.loop.call_soon(self.lose)
            self.tell_client()

    def is_closing(self) -> bool:
        return self.closing

    def get_protocol(self) -> Any:
        return self.protocol

    def get_write_buffer_size(self) -> int:
        return len(self.buffer.bytes)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None and low is not None
        self.buffer.high, self.buffer.low = high // SHORTER, low // SHORTER

    def pause_reading(self) -> None:
        self.unread.reads = False

    def resume_reading(self) -> None:
        if not self.unread.reads:
            self.unread.reads = True
            self.process.loop.call_soon(self.unread.read_on)
