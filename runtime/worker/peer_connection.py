# SPDX-License-Identifier: Apache-2.0
"""A decode worker's connection to one prefill worker: one handshake for each incarnation, with a deadline."""

import math
from dataclasses import dataclass
from enum import Enum

from pontil.runtime.errors import TransferError
from pontil.runtime.transfer.connector import Connector
from pontil.runtime.wire.messages import Greeting
from pontil.runtime.wire.sockets import PeerClient

WITHOUT_RANKS = (
    "of a version that cannot hand over to or from several ranks: install the same version of pontil for both"
)


class HandshakeState(Enum):
    GREETING = "greeting"
    READY = "ready"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class PeerConnection:
    """The connection to `peer`, the prefill worker's incarnation, at the address `endpoint`. The peer must answer by
    `deadline`, `patience` seconds after the handshake began. Until it was `heard`, the socket is replaced at
    `replace_at`, and `replacements` counts how often. `reason` says why a FAILED connection failed. A connection whose
    address now belongs to another process has no socket."""

    peer: str
    endpoint: str
    socket: PeerClient | None
    deadline: float
    patience: float
    replace_at: float = math.inf
    replacements: int = 0
    heard: bool = False
    state: HandshakeState = HandshakeState.GREETING
    reason: str = ""

    def greeted(self, greeting: Greeting, connector: Connector, ranks: int) -> None:
        """Handle the peer's answer: attach its pool, or record why that is not possible. Only the first answer counts.
        `ranks` are ours."""
        if self.state is not HandshakeState.GREETING:
            return
        if greeting.pool is None:
            self.fail(greeting.reason or "the prefill worker refused the handshake")
            return
        if ranks > 1 and greeting.ranks is None:
            self.fail(f"the prefill worker is {WITHOUT_RANKS}")
            return
        try:
            connector.attach(self.peer, greeting.pool)
        except TransferError as error:
            self.fail(str(error))
        else:
            self.state = HandshakeState.READY

    def is_unheard(self, now: float) -> bool:
        """Return whether its socket is due to be replaced."""
        return not self.heard and self.socket is not None and now >= self.replace_at

    def tick(self, now: float) -> None:
        if self.state is HandshakeState.GREETING and now >= self.deadline:
            self.fail(f"the prefill worker did not answer within {self.patience:g} s")

    def fail(self, reason: str) -> None:
        self.state, self.reason = HandshakeState.FAILED, reason
