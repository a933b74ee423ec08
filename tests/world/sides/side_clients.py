# SPDX-License-Identifier: Apache-2.0
"""The client's end of a connection to a server in an event loop: a socket, or a connection of the world."""

import socket
from contextlib import suppress
from typing import Any

CHUNK = 1 << 16


class SocketClient:
    """A socket that is read whenever somebody looks, if it `reads`."""

    def __init__(self, server: Any, reads: bool) -> None:
        self.socket = socket.create_connection(server.sockets[0].getsockname()[:2])
        self.socket.setblocking(False)
        self.reads, self.found, self.ended = reads, b"", False

    def look(self) -> None:
        with suppress(BlockingIOError):
            while self.reads and not self.ended:
                piece = self.socket.recv(CHUNK)
                self.found, self.ended = self.found + piece, not piece

    @property
    def data(self) -> bytes:
        self.look()
        return self.found

    @property
    def has_ended(self) -> bool:
        self.look()
        return self.ended

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def leave(self) -> None:
        self.socket.close()
