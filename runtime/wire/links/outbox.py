# SPDX-License-Identifier: Apache-2.0
"""Messages that a peer's socket did not take: kept in order, and sent as soon as it takes them (B12).

A peer whose socket takes none of them for PATIENCE, or that has more than MOST queued, is given up: the owner of the
outbox gets the unsent messages and ends what depended on them. Every wait for one of them has a deadline of its own
too, at either end, so that a message that is lost with its peer costs time, but never blocks.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pontil.runtime.wire.links.sockets import HIGH_WATER_MARK
from pontil.runtime.wire.messages import Message

# As long as a handshake or a pull without bytes may take. A broken connection is normally made again within half a
# second.
PATIENCE = 5.0
# The socket itself queues as many.
MOST = HIGH_WATER_MARK


@dataclass(slots=True)
class PeerBacklog:
    """The unsent messages of one peer. At each look since `since` the socket has taken none."""

    messages: deque[Message] = field(default_factory=deque)
    since: float | None = None


class Outbox:
    """Unsent messages by peer. `send(peer, message)` returns whether the peer's socket took it. Each peer gets its
    messages in the order in which they were posted. Not thread-safe: the sockets' thread owns it.

    Conservation: a message that was posted has been sent, waits here, was returned by `flush`, or went with `drop`.
    """

    def __init__(self, send: Callable[[str, Message], bool]) -> None:
        self.send = send
        self.backlogs: dict[str, PeerBacklog] = {}

    def __len__(self) -> int:
        """The number of messages that wait."""
        return sum(len(backlog.messages) for backlog in self.backlogs.values())

    def post(self, peer: str, message: Message) -> None:
        """Send the message, or queue it behind those that wait already."""
        if peer in self.backlogs or not self.send(peer, message):
            self.backlogs.setdefault(peer, PeerBacklog()).messages.append(message)

    def flush(self, now: float) -> dict[str, list[Message]]:
        """Send what the sockets take now. Return the peers that are given up, each with its unsent messages."""
        if not self.backlogs:
            return {}
        given_up = [peer for peer, backlog in list(self.backlogs.items()) if self.is_hopeless(peer, backlog, now)]
        return {peer: list(self.backlogs.pop(peer).messages) for peer in given_up}

    def is_hopeless(self, peer: str, backlog: PeerBacklog, now: float) -> bool:
        """Try to send the backlog again, then return whether the peer is given up."""
        waiting = len(backlog.messages)
        while backlog.messages and self.send(peer, backlog.messages[0]):
            backlog.messages.popleft()
        if not backlog.messages:
            del self.backlogs[peer]
            return False
        if backlog.since is None or len(backlog.messages) < waiting:
            backlog.since = now
        return now - backlog.since >= PATIENCE or len(backlog.messages) > MOST

    def drop(self, peer: str) -> None:
        """Discard the messages for a peer that is gone. A peer without a backlog is no error."""
        self.backlogs.pop(peer, None)
