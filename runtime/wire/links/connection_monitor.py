# SPDX-License-Identifier: Apache-2.0
"""The state of a client's connection, from the events of its socket."""

from enum import Enum

import zmq
from zmq.utils import monitor

# A handshake takes milliseconds. A failed one may have met a server that was shutting down, so one failure proves
# nothing.
HANDSHAKE_TIMEOUT = 5.0


class Reachability(Enum):
    AWAY = "nobody answers at the address"
    REFUSED = "somebody answers, and does not have our keys"
    OPEN = "connected"


STATES = {
    zmq.EVENT_HANDSHAKE_SUCCEEDED: Reachability.OPEN,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: Reachability.REFUSED,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: Reachability.REFUSED,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: Reachability.REFUSED,
    # A failed attempt to connect.
    zmq.EVENT_CLOSED: Reachability.AWAY,
}
EVENTS = sum(STATES) | zmq.EVENT_DISCONNECTED
# A plain number: it is asked for in every turn, and operators of enumerations are slow.
READABLE = int(zmq.POLLIN)


class ConnectionMonitor:
    """The state of the connection of a socket, or of those that replace one another: `watch` each before it connects.
    `state` has held since `since`, in the caller's seconds; `breaks` counts the open connections that ended by
    themselves."""

    def __init__(self, now: float) -> None:
        self.socket: zmq.Socket[bytes] | None = None
        self.events: zmq.Socket[bytes] | None = None
        self.state, self.since = Reachability.AWAY, now
        self.breaks = 0

    def watch(self, socket: "zmq.Socket[bytes]", now: float) -> None:
        if self.state is Reachability.OPEN:
            self.state, self.since = Reachability.AWAY, now
        self.socket, self.events = socket, socket.get_monitor_socket(EVENTS)

    def look(self, now: float) -> None:
        """Process the events since the last call."""
        while self.events is not None and int(self.events.getsockopt(zmq.EVENTS)) & READABLE:
            self.happened(monitor.recv_monitor_message(self.events)["event"], now)

    def happened(self, event: int, now: float) -> None:
        """Apply one event. A disconnect changes only an open connection; it does not clear REFUSED."""
        state = STATES.get(zmq.Event(event))
        if state is None:
            state = Reachability.AWAY if self.state is Reachability.OPEN else self.state
        if state is not self.state:
            self.breaks += self.state is Reachability.OPEN
            self.state, self.since = state, now

    def lasts(self, state: Reachability, now: float) -> bool:
        """Return whether `state` has held for longer than a handshake may take."""
        return self.state is state and now - self.since > HANDSHAKE_TIMEOUT

    def close(self) -> None:
        """Close both ends of the monitor: a context terminates only when its last socket is closed. Our own end of an
        open connection is no break."""
        if self.socket is not None and self.events is not None:
            self.socket.disable_monitor()
            self.events.close(0)
            self.socket = self.events = None
