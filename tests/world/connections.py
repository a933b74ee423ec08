# SPDX-License-Identifier: Apache-2.0
"""Connections of clients to proxies: bytes with latency, in order, and an end that both sides notice."""

import asyncio
from typing import Any, Protocol

from event_loop import LoopProcess
from virtual_time import SeededWorld

LATENCY = 80e-6


class ConnectionUser(Protocol):
    """The client's side of a connection."""

    def received(self, data: bytes) -> None: ...

    def disconnected(self) -> None: ...


class ClientConnection(asyncio.Transport):
    """One connection, as the transport of the proxy's protocol and as the client's socket."""

    def __init__(self, world: SeededWorld, process: LoopProcess, user: ConnectionUser, number: int) -> None:
        super().__init__({"peername": (f"10.0.0.{1 + number % 250}", 4000 + number), "sockname": ("127.0.0.1", 80)})
        self.world, self.process, self.user = world, process, user
        self.arrival = 0.0
        self.closing = self.left = self.ended = False
        assert process.loop.factory is not None, "the proxy does not listen yet"
        self.protocol: Any = None
        process.at_death.append(self.end)
        process.call(self.open)

    def open(self) -> None:
        """Accept the connection, in the proxy's loop."""
        assert self.process.loop.factory is not None
        self.protocol = self.process.loop.factory()
        self.protocol.connection_made(self)

    # The client's side.

    def send(self, data: bytes) -> None:
        self.world.after(LATENCY, lambda: self.process.call(self.deliver, data))

    def leave(self) -> None:
        """Close it: the client wants no more."""
        if not self.left:
            self.left = True
            self.world.after(LATENCY, lambda: self.process.call(self.lose))

    def end(self) -> None:
        """End with the proxy's process."""
        if not self.ended:
            self.ended = True
            self.world.after(LATENCY, self.tell_end)

    def tell_end(self) -> None:
        if not self.left:
            self.left = True
            self.user.disconnected()

    def hear(self, data: bytes) -> None:
        if not self.left:
            self.user.received(data)

    # The proxy's side.

    def deliver(self, data: bytes) -> None:
        if not self.closing:
            self.protocol.data_received(data)

    def lose(self) -> None:
        if not self.closing:
            self.closing = True
            self.protocol.connection_lost(None)

    def write(self, data: Any) -> None:
        if self.closing:
            return
        when = max(self.world.now() + LATENCY, self.arrival)
        self.arrival, sent = when, bytes(data)
        self.process.acts(self.world.now(), lambda: self.world.at(when, lambda: self.hear(sent)))

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self.process.loop.call_soon(self.protocol.connection_lost, None)
            when = max(self.world.now() + LATENCY, self.arrival)
            self.process.acts(self.world.now(), lambda: self.world.at(when, self.tell_end))

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self.closing

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return
