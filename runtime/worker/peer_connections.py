# SPDX-License-Identifier: Apache-2.0
"""A worker's connections to the workers that it pulls from: handshakes, queued messages, and peers that were given up.
A decode worker has connections to prefill workers, a consumer of streams to producers."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from pontil.runtime.config import Deadlines
from pontil.runtime.errors import PontilError
from pontil.runtime.transfer.connector import Connector
from pontil.runtime.wire.context import Context
from pontil.runtime.wire.messages import Greet, Message
from pontil.runtime.wire.outbox import Outbox
from pontil.runtime.wire.sockets import PeerClient, Poller
from pontil.runtime.worker.peer_connection import HandshakeState, PeerConnection

# Seconds until a socket on which nothing was heard is replaced; twice as many the next time. The socket of an older
# connection to the same address may still be closing. If it reaches the peer after ours, under our name, the peer lets
# go of ours, which does not notice: whatever is sent over it from then on is lost.
REPLACED_AFTER = 0.5


class PeerConnections(Mapping[str, PeerConnection]):
    """Connections by the peer's incarnation. `greeting` is the first message to each peer, except for its receiver;
    without one a connection is ready at once, and its owner attaches the peer's pool."""

    def __init__(
        self, sender: str, greeting: Greet | None, connector: Connector, context: Context, poller: Poller,
        deadlines: Deadlines,
    ) -> None:  # fmt: skip
        self.sender, self.greeting, self.connector, self.deadlines = sender, greeting, connector, deadlines
        self.context, self.poller = context, poller
        self.by_peer: dict[str, PeerConnection] = {}
        self.outbox = Outbox(self.put)

    def __getitem__(self, peer: str) -> PeerConnection:
        return self.by_peer[peer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_peer)

    def __len__(self) -> int:
        return len(self.by_peer)

    @property
    def failed(self) -> dict[str, str]:
        """Return the reasons of failed connections, by peer."""
        return {
            peer: connection.reason
            for peer, connection in self.by_peer.items()
            if connection.state is HandshakeState.FAILED
        }

    def open(self, peer: str, endpoint: str, now: float) -> str | None:
        """Connect to a peer and start the handshake, unless it has a connection that has not failed. Return why it
        cannot be, where a proxy named an address that is none."""
        connection = self.by_peer.get(peer)
        if connection is not None and connection.state is not HandshakeState.FAILED:
            return None
        self.hang_up(peer)
        self.clear_the_address(endpoint)
        try:
            socket = self.connect(endpoint)
        except PontilError as error:
            return str(error)
        patience = self.deadlines.kv_handshake_timeout
        connection = self.by_peer[peer] = PeerConnection(
            peer, endpoint, socket, now + patience, patience, now + REPLACED_AFTER
        )
        if self.greeting is None:
            connection.state = HandshakeState.READY
        else:
            self.tell(peer, replace(self.greeting, receiver=peer))
        return None

    def connect(self, endpoint: str) -> PeerClient:
        socket = PeerClient(self.context, self.sender, endpoint)
        self.poller.register(socket)
        return socket

    def connect_again(self, connection: PeerConnection, now: float) -> None:
        """Replace the socket of a peer that was never heard, and repeat the greeting, if there is one."""
        self.disconnect(connection)
        connection.socket = self.connect(connection.endpoint)
        connection.replacements += 1
        connection.replace_at = now + REPLACED_AFTER * 2**connection.replacements
        if self.greeting is not None:
            self.tell(connection.peer, replace(self.greeting, receiver=connection.peer))

    def clear_the_address(self, endpoint: str) -> None:
        """Close older connections to this address, which one process owns at a time. A socket for the previous owner
        would also connect to this one, under our name, and messages to us could go there."""
        for connection in self.by_peer.values():
            if connection.endpoint == endpoint and connection.socket is not None:
                self.silence(connection)
                connection.fail("another process has the prefill worker's address now")

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
        """Close the socket. An open one would connect again and again, to any process that has the address then."""
        self.disconnect(connection)
        self.outbox.drop(connection.peer)

    def disconnect(self, connection: PeerConnection) -> None:
        if connection.socket is not None:
            self.poller.unregister(connection.socket)
            connection.socket.close()
            connection.socket = None

    def receive_all(self) -> Iterator[Message]:
        for connection in list(self.by_peer.values()):
            for message in connection.socket.receive_all() if connection.socket else ():
                connection.heard = True
                yield message

    def tell(self, peer: str, message: Message) -> None:
        self.outbox.post(peer, message)

    def put(self, peer: str, message: Message) -> bool:
        """Return whether the peer's socket accepted the message, or there is no socket and so no peer to tell."""
        connection = self.by_peer.get(peer)
        return connection is None or connection.socket is None or connection.socket.send(message)

    def flush(self, now: float) -> list[str]:
        """Send queued messages. Return the peers that accept none."""
        return list(self.outbox.flush(now))

    def tick(self, now: float) -> None:
        """Give up handshakes that failed, and connect again to peers that were never heard."""
        for connection in self.by_peer.values():
            connection.tick(now)
            if connection.state is HandshakeState.FAILED:
                self.silence(connection)
            elif connection.is_unheard(now):
                self.connect_again(connection, now)

    def close(self) -> None:
        for connection in self.by_peer.values():
            if connection.socket is not None:
                connection.socket.close()
