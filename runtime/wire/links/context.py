# SPDX-License-Identifier: Apache-2.0
"""The zmq context of a process, and the choice of endpoints that are guarded by keys (CURVE, ZeroMQ RFC 26)."""

import zmq

from pontil.runtime.config.worker_config import DEADLINES
from pontil.runtime.threads import ThreadFailures
from pontil.runtime.wire.links.keys import Keys, is_network
from pontil.runtime.wire.links.zap_authenticator import ZapAuthenticator

# Parts of the link timeout: between two signs of life, and until the answer to one is missed. Together they leave room
# for a loop to notice, and for TCP to bridge a short gap by itself.
HEARTBEAT_PART, ANSWER_PART = 0.1, 0.7
# Seconds of one attempt to connect, whose first packet may be lost.
CONNECT_TIMEOUT = 1.0


class Context:
    """The zmq context; one for each process. A connection over the network on which nothing comes for `link_timeout`
    is closed at both ends. Thread-safe. Call `close` when its servers are closed, or `term` when all its sockets
    are."""

    def __init__(
        self,
        keys: Keys | None = None,
        failures: ThreadFailures | None = None,
        link_timeout: float = DEADLINES.link_timeout,
    ) -> None:
        self.keys, self.link_timeout = keys, link_timeout
        self.zmq_context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.authenticator = (
            None if keys is None else ZapAuthenticator(self.zmq_context, keys.client.raw_public, failures)
        )

    def socket(self, kind: int) -> "zmq.Socket[bytes]":
        return self.zmq_context.socket(kind)

    def watch_link(self, socket: "zmq.Socket[bytes]", endpoint: str) -> None:
        """Have libzmq's own thread exchange signs of life over a network, where packets may be lost without a word: a
        peer that only computes answers them too. Call it before the bind or the connect. A socket file needs none: its
        end is the end of its process."""
        if not is_network(endpoint):
            return
        limit = self.link_timeout * 1000
        socket.setsockopt(zmq.HEARTBEAT_IVL, max(1, round(limit * HEARTBEAT_PART)))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, max(1, round(limit * ANSWER_PART)))
        # A sign of life behind data that is not acknowledged is never sent.
        socket.setsockopt(zmq.TCP_MAXRT, max(1, round(limit * ANSWER_PART)))
        socket.setsockopt(zmq.HANDSHAKE_IVL, max(1, round(limit)))
        socket.setsockopt(zmq.CONNECT_TIMEOUT, round(CONNECT_TIMEOUT * 1000))

    def guard_server(self, socket: "zmq.Socket[bytes]", endpoint: str) -> None:
        """Accept only clients with the system's keys, where the endpoint needs them. Call it before the bind."""
        if self.keys is not None and is_network(endpoint):
            socket.curve_server = True
            socket.curve_secretkey = self.keys.server.secret
            socket.setsockopt_string(zmq.ZAP_DOMAIN, "pontil")

    def guard_client(self, socket: "zmq.Socket[bytes]", endpoint: str) -> None:
        """Speak only to a server with the system's keys, where the endpoint needs them. Call it before the connect."""
        if self.keys is not None and is_network(endpoint):
            socket.curve_serverkey = self.keys.server.public
            socket.curve_publickey, socket.curve_secretkey = self.keys.client.public, self.keys.client.secret

    def close(self) -> None:
        if self.authenticator is not None:
            self.authenticator.close()

    def term(self) -> None:
        """Wait until closed sockets have sent what they still had queued."""
        self.close()
        self.zmq_context.term()

    def destroy(self, linger: int) -> None:
        """Close every socket, in whichever thread it is used."""
        self.close()
        self.zmq_context.destroy(linger=linger)
