# SPDX-License-Identifier: Apache-2.0
"""A worker's connections to the workers that it pulls from: handshakes, queued messages, and peers that were given up.
A decode worker has connections to prefill workers, a consumer of streams to producers."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from pontil.runtime.errors import PontilError
from pontil.runtime.transfer.connector import Connector
from pontil.runtime.wire.links.outbox import Outbox
from pontil.runtime.wire.links.renewal import Renewal
from pontil.runtime.wire.links.sockets import PeerClient
from pontil.runtime.wire.messages import Greet, Greeting, Message
from pontil.runtime.worker.links.peer_connection import HandshakeState, PeerConnection
from pontil.runtime.worker.links.worker_sockets import WorkerSockets

# Seconds between two looks at the state of the connections.
LOOK = 0.25
# Seconds after which a peer that is LOST is forgotten: a process that ended does not come back.
LONGEST_LOSS = 600.0
TAKEN = "another process has the prefill worker's address now"


class PeerConnections(Mapping[str, PeerConnection]):
    """Connections by the peer's incarnation. `greeting` is the first message to each peer, except for its receiver;
    without one a connection is ready at once, and its owner attaches the peer's pool."""

    def __init__(self, sockets: WorkerSockets, connector: Connector, greeting: Greet | None = None) -> None:
        self.worker_sockets, self.connector, self.greeting = sockets, connector, greeting
        self.deadlines = sockets.config.deadlines
        self.by_peer: dict[str, PeerConnection] = {}
        self.outbox = Outbox(self.put)
        self.told_lost: list[str] = []
        self.look_at = 0.0

    def __getitem__(self, peer: str) -> PeerConnection:
        return self.by_peer[peer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_peer)

    def __len__(self) -> int:
        return len(self.by_peer)

    @property
    def sockets(self) -> list[PeerClient]:
        return list(dict.fromkeys(one.socket for one in self.by_peer.values() if one.socket is not None))

    @property
    def failed(self) -> dict[str, str]:
        """Return the reasons of failed and lost connections, by peer."""
        return {peer: connection.reason for peer, connection in self.by_peer.items() if connection.reason}

    @property
    def lost(self) -> list[str]:
        """Return the peers of which nothing is heard."""
        return [peer for peer, one in self.by_peer.items() if one.state is HandshakeState.LOST]

    def take_news(self) -> bool:
        """Return whether other peers are lost than at the last call."""
        if not (self.by_peer or self.told_lost):
            return False
        before, self.told_lost = self.told_lost, self.lost
        return before != self.told_lost

    def open(self, peer: str, endpoint: str, now: float) -> str | None:
        """Connect to a peer and start the handshake, unless it has a connection that has not failed. Return why it
        cannot be, where a proxy named an address that is none, or that of another process."""
        connection = self.by_peer.get(peer)
        if connection is not None and connection.state is not HandshakeState.FAILED:
            return None
        if self.has_owner(endpoint, now):
            return TAKEN
        self.hang_up(peer)
        if self.greeting is None:
            self.clear_the_address(endpoint)
        others = self.named_at(endpoint)
        try:
            socket = others[0].socket if others else self.connect(endpoint)
        except PontilError as error:
            return str(error)
        assert socket is not None
        patience = self.deadlines.kv_handshake_timeout
        renewal = others[0].renewal if others else Renewal.begun(now)
        connection = PeerConnection(
            peer, endpoint, socket, now + patience, patience, renewal, breaks=socket.breaks(now)
        )
        self.by_peer[peer] = connection
        if self.greeting is None:
            connection.state = HandshakeState.READY
        elif others:
            self.connect_again(connection, now)
        else:
            self.greet(connection)
        return None

    def has_owner(self, endpoint: str, now: float) -> bool:
        """Return whether a process has answered from an address, and still does: who names another one there has not
        heard of this one yet. Its connection, and what it hands over, must not suffer from that."""
        return self.greeting is not None and any(
            one.endpoint == endpoint and one.answers(now) for one in self.by_peer.values()
        )

    def connect(self, endpoint: str) -> PeerClient:
        own = self.worker_sockets
        socket = PeerClient(own.context, own.incarnation, endpoint)
        own.poller.register(socket)
        return socket

    def greet(self, connection: PeerConnection) -> None:
        """Say the first words, and those again that may have been lost with an earlier connection."""
        if self.greeting is not None:
            self.tell(connection.peer, replace(self.greeting, receiver=connection.peer))
        for _, word in connection.last_words:
            self.tell(connection.peer, word)

    def connect_again(self, connection: PeerConnection, now: float) -> None:
        """Replace the connection to an address at which nobody was heard, and greet all that were named there."""
        assert connection.socket is not None
        connection.socket.renew(now)
        connection.renewal.renewed(now)
        for one in self.named_at(connection.endpoint):
            self.greet(one)

    def named_at(self, endpoint: str) -> list[PeerConnection]:
        """Return the connections to this address, which one process owns at a time. They share one socket: each socket
        connects again and again under our name, and messages to us would go to any of them."""
        return [one for one in self.by_peer.values() if one.endpoint == endpoint and one.socket is not None]

    def clear_the_address(self, endpoint: str, owner: PeerConnection | None = None) -> None:
        """Give up those that were named at this address, except for its owner."""
        for connection in self.named_at(endpoint):
            if connection is not owner:
                self.silence(connection)
                connection.fail(TAKEN)

    def greeted(self, message: Greeting, ranks: int, now: float) -> None:
        """Handle a peer's answer, which shows whose the address is. `ranks` are ours. Who was only named there gives
        way: a proxy's word may be late, and does not say which process came later."""
        connection = self.by_peer.get(message.sender)
        if connection is None:
            return
        connection.greeted(message, self.connector, ranks)
        if connection.is_unbroken(now):
            self.clear_the_address(connection.endpoint, connection)

    def forget_unused(self, used: Collection[str | None], most: int) -> None:
        """Close connections that failed and that no transfer uses; where there are `most`, also others unused."""
        full = len(self.by_peer) >= most
        for peer, connection in list(self.by_peer.items()):
            if peer not in used and (full or connection.state is HandshakeState.FAILED):
                self.hang_up(peer)

    def hang_up(self, peer: str) -> None:
        connection = self.by_peer.pop(peer, None)
        if connection is not None:
            self.silence(connection)
            self.connector.detach(peer)

    def silence(self, connection: PeerConnection) -> None:
        """Leave the socket, which would connect again and again, to any process that has the address then."""
        self.disconnect(connection)
        self.outbox.drop(connection.peer)

    def disconnect(self, connection: PeerConnection) -> None:
        """Close the socket, unless others that were named at the address use it."""
        socket, connection.socket = connection.socket, None
        if socket is not None and socket not in self.sockets:
            self.worker_sockets.poller.unregister(socket)
            socket.close()

    def receive_all(self) -> Iterator[Message]:
        for connection in list(self.by_peer.values()):
            for message in connection.socket.receive_all() if connection.socket else ():
                connection.renewal.heard = True
                yield message

    def tell(self, peer: str, message: Message) -> None:
        self.outbox.post(peer, message)

    def tell_last(self, peer: str, word: Message, now: float) -> None:
        """Tell a peer something that may be said twice, and is said again if the connection turns out to be broken."""
        self.tell(peer, word)
        connection = self.by_peer.get(peer)
        if connection is not None:
            connection.note_last(word, now, 2 * self.deadlines.link_timeout)

    def put(self, peer: str, message: Message) -> bool:
        """Return whether the peer's socket accepted the message, or there is no socket and so no peer to tell."""
        connection = self.by_peer.get(peer)
        return connection is None or connection.socket is None or connection.socket.send(message)

    def flush(self, now: float) -> list[str]:
        """Send queued messages. Return the peers that accept none."""
        return list(self.outbox.flush(now)) if self.outbox.backlogs else []

    def tick(self, now: float) -> list[str]:
        """Give up handshakes that failed, and connect again to peers that are not heard. Return those that are lost
        from now on: their handshake is late, or their connection broke. Without a greeting nobody answers, and what
        depends on a peer has its own deadline."""
        looking, lost = now >= self.look_at, []
        if looking:
            self.look_at = now + LOOK
        for connection in list(self.by_peer.values()):
            if connection.state is HandshakeState.FAILED:
                self.silence(connection)
            elif connection.is_late(now):
                connection.lose(f"the prefill worker did not answer within {connection.patience:g} s", now)
                lost.append(connection.peer)
            elif looking and connection.has_broken(now) and self.greeting is not None:
                if connection.state is HandshakeState.READY:
                    connection.lose("the connection to the prefill worker broke", now)
                    lost.append(connection.peer)
                # The greeting or its answer may be lost, although something was heard.
                connection.renewal.again(now)
            if connection.state is HandshakeState.LOST and now - connection.lost_at >= LONGEST_LOSS:
                self.hang_up(connection.peer)
        for connection in list(self.by_peer.values()):
            if connection.is_unheard(now):
                self.connect_again(connection, now)
        return lost

    def close(self) -> None:
        for socket in self.sockets:
            socket.close()
