# SPDX-License-Identifier: Apache-2.0
"""Frames on their way between sockets of one thread: whoever has sent some goes on when they have arrived."""

import math
import time
from collections.abc import Iterable

from pontil.runtime.wire.links.sockets import ControlServer, WorkerSocket
from pontil.runtime.wire.messages import Message

# Seconds after which frames that have not come were lost, with the connection that had them.
LOST_AFTER = 1.0


class FramesUnderway:
    """Frames for one server that it has not received yet. zmq brings them by threads of its own, which a busy machine
    may not run while the sender computes on: what a test sees of it would then say nothing of how far it is."""

    def __init__(self, server: ControlServer) -> None:
        self.server = server
        self.sent = self.received = 0

    def count(self, sockets: Iterable[WorkerSocket]) -> None:
        """Count from now on what those of the sockets send that lead to the server."""
        for socket in sockets:
            if socket.endpoint == self.server.endpoint:
                self.count_one(socket)

    def count_one(self, socket: WorkerSocket) -> None:
        put = socket.put

        def counted(parts: list[bytes]) -> bool:
            is_sent = put(parts)
            self.sent += is_sent
            return is_sent

        socket.put = counted  # type: ignore[method-assign]

    def receive(self) -> list[Message]:
        """Return the messages that have come, once all that were counted have."""
        messages, until = list[Message](), time.monotonic() + LOST_AFTER
        while True:
            dropped = self.server.malformed
            came = self.server.receive_all()
            messages += came
            self.received += len(came) + self.server.malformed - dropped
            left = until - time.monotonic()
            if self.received >= self.sent or left <= 0:
                # Others may have come too: they were sent before anybody counted.
                self.received = self.sent
                return messages
            self.server.zmq_socket.poll(math.ceil(left * 1000))
