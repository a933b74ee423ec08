# SPDX-License-Identifier: Apache-2.0
"""How it stands with a client's connection, from what its socket tells of each attempt."""

from enum import Enum

import zmq
from zmq.utils.monitor import recv_monitor_message

# A handshake takes milliseconds. One that failed may have met a server that was just ending; the next tells.
HANDSHAKE_TIMEOUT = 5.0


class Reach(Enum):
    AWAY = "nobody answers at the address"
    REFUSED = "somebody answers, and does not have our keys"
    OPEN = "connected"


STATES = {
    zmq.EVENT_HANDSHAKE_SUCCEEDED: Reach.OPEN,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: Reach.REFUSED,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: Reach.REFUSED,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: Reach.REFUSED,
    # An attempt to connect that came to nothing.
    zmq.EVENT_CLOSED: Reach.AWAY,
}
EVENTS = sum(STATES) | zmq.EVENT_DISCONNECTED


class Connection:
    """Of a socket that is going to connect. `state` has held since `since`, in the caller's seconds."""

    def __init__(self, socket: "zmq.Socket[bytes]", now: float) -> None:
        self.socket = socket
        self.events = socket.get_monitor_socket(EVENTS)
        self.state, self.since = Reach.AWAY, now

    def look(self, now: float) -> None:
        """Take in what happened since the last look."""
        while self.events.poll(0):
            self.happened(recv_monitor_message(self.events)["event"], now)

    def happened(self, event: int, now: float) -> None:
        """A connection that ends says nothing of the next, unless it was open."""
        state = STATES.get(zmq.Event(event))
        if state is None:
            state = Reach.AWAY if self.state is Reach.OPEN else self.state
        if state is not self.state:
            self.state, self.since = state, now

    def lasts(self, state: Reach, now: float) -> bool:
        """Whether it has been so for longer than a handshake may take."""
        return self.state is state and now - self.since > HANDSHAKE_TIMEOUT

    def close(self) -> None:
        """Both ends: a context ends when its last socket is closed."""
        self.socket.disable_monitor()
        self.events.close(0)
