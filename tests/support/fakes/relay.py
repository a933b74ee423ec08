# SPDX-License-Identifier: Apache-2.0
"""A TCP relay that records all traffic and may corrupt some of it, or stop without a word."""

import contextlib
import select
import socket
import threading
from collections.abc import Callable

Spoil = Callable[[bytes, int], bytes]
# The two directions: to the target, and from it.
THERE, BACK = "there", "back"
# Seconds after which a relay that was `held` goes on.
LOOK = 0.02


class Relay:
    """Relay from `address` to `target`. `spoil` gets the data that the target sends, with the number of bytes before
    it, and returns what is forwarded. In the directions that are `held` nothing goes on, and no end of a connection:
    as on a link that is cut."""

    def __init__(self, target: tuple[str, int], host: str = "127.0.0.1", spoil: Spoil | None = None) -> None:
        self.target, self.spoil = target, spoil or (lambda data, before: data)
        self.sent, self.received = bytearray(), bytearray()
        self.held: frozenset[str] = frozenset()
        self.listener = socket.create_server((host, 0))
        self.open: list[socket.socket] = []
        self.threads: list[threading.Thread] = []
        self.accepting = threading.Thread(target=self.accept, daemon=True)
        self.accepting.start()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.listener.getsockname()[:2]
        return host, port

    @property
    def seen(self) -> bytes:
        """All recorded bytes, in both directions."""
        return bytes(self.sent + self.received)

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                try:
                    far = socket.create_connection(self.target, 5)
                except OSError:
                    near.close()
                    continue
                self.open += [near, far]
                self.threads.append(threading.Thread(target=self.carry, args=(near, far), daemon=True))
                self.threads[-1].start()

    def carry(self, near: socket.socket, far: socket.socket) -> None:
        """Relay a connection until one end of it ends; then end the other, also after a reset."""
        with contextlib.suppress(OSError, ValueError), contextlib.ExitStack() as ending:
            ending.callback(end_all, near, far)
            while True:
                sources = {source: way for source, way in ((near, THERE), (far, BACK)) if way not in self.held}
                for source in select.select(list(sources), [], [], LOOK)[0]:
                    if sources[source] in self.held:
                        continue
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    if source is near:
                        self.sent += data
                        far.sendall(data)
                    else:
                        going = self.spoil(data, len(self.received))
                        self.received += data
                        near.sendall(going)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.accepting.join(5)
        end_all(*self.open)
        for thread in self.threads:
            thread.join(5)
        for one in [self.listener, *self.open]:
            one.close()


def end_all(*ends: socket.socket) -> None:
    for one in ends:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
