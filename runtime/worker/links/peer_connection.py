# SPDX-License-Identifier: Apache-2.0
"""A decode worker's connection to one prefill worker: one handshake for each incarnation, with a deadline."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from pontil.runtime.errors import TransferError
from pontil.runtime.transfer.connector import Connector
from pontil.runtime.wire.links.renewal import Renewal
from pontil.runtime.wire.links.sockets import PeerClient
from pontil.runtime.wire.messages import Greeting, Message

WITHOUT_RANKS = (
    "of a version that cannot hand over to or from several ranks: install the same version of pontil for both"
)


class HandshakeState(Enum):
    GREETING = "greeting"
    READY = "ready"
    # Nothing is heard of the peer: it is greeted until it answers.
    LOST = "lost"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class PeerConnection:
    """The connection to `peer`, the prefill worker's incarnation, at the address `endpoint`. The peer must answer by
    `deadline`, `patience` seconds after the handshake began, else it is LOST; so it is when the connection breaks.
    Until it was heard, the connection is replaced as `renewal` says. `reason` says why a connection is LOST or FAILED.
    Peers that were named at one address share its socket and renewal until one of them answers; the others have no
    socket from then on. Its pool is `attached` once. `last_words` are messages that end something at the peer, with
    their times: one that is lost with a connection is repeated."""

    peer: str
    endpoint: str
    socket: PeerClient | None
    deadline: float
    patience: float
    renewal: Renewal = field(default_factory=lambda: Renewal(0.0))
    state: HandshakeState = HandshakeState.GREETING
    reason: str = ""
    attached: bool = False
    breaks: int = 0
    lost_at: float = 0.0
    last_words: deque[tuple[float, Message]] = field(default_factory=deque)

    def greeted(self, greeting: Greeting, connector: Connector, ranks: int) -> None:
        """Handle the peer's answer: attach its pool, or record why that is not possible. Only the first answer counts.
        `ranks` are ours."""
        if self.state not in (HandshakeState.GREETING, HandshakeState.LOST):
            return
        if greeting.pool is None:
            self.fail(greeting.reason or "the prefill worker refused the handshake")
            return
        if ranks > 1 and greeting.ranks is None:
            self.fail(f"the prefill worker is {WITHOUT_RANKS}")
            return
        try:
            if not self.attached:
                connector.attach(self.peer, greeting.pool)
        except TransferError as error:
            self.fail(str(error))
        else:
            self.attached, self.state, self.reason = True, HandshakeState.READY, ""

    def is_unheard(self, now: float) -> bool:
        """Return whether its connection is due to be replaced."""
        return self.socket is not None and self.renewal.is_due(now)

    def answers(self, now: float) -> bool:
        """Return whether the peer has answered over a connection that has not ended since."""
        return self.state is HandshakeState.READY and self.is_unbroken(now)

    def is_unbroken(self, now: float) -> bool:
        """Return whether what was heard of the peer came over the connection of now."""
        return self.socket is not None and self.socket.breaks(now) == self.breaks

    def is_late(self, now: float) -> bool:
        return self.state is HandshakeState.GREETING and now >= self.deadline

    def has_broken(self, now: float) -> bool:
        """Return whether the open connection has ended since the last call."""
        before, self.breaks = self.breaks, self.breaks if self.socket is None else self.socket.breaks(now)
        return self.breaks > before

    def lose(self, reason: str, now: float) -> None:
        """Note that nothing is heard of the peer any more: whatever is lost with a connection may have been for it."""
        self.state, self.reason, self.lost_at = HandshakeState.LOST, reason, now
        self.renewal.again(now)

    def note_last(self, word: Message, now: float, window: float) -> None:
        """Note a last word, and forget those from before the window: they have arrived."""
        while self.last_words and self.last_words[0][0] < now - window:
            self.last_words.popleft()
        self.last_words.append((now, word))

    def fail(self, reason: str) -> None:
        self.state, self.reason = HandshakeState.FAILED, reason
