# SPDX-License-Identifier: Apache-2.0
"""The zmq context of a process, and the choice of endpoints that are guarded by keys (CURVE, ZeroMQ RFC 26)."""

import hmac
import os
from collections.abc import Sequence

import zmq

from pontil.runtime.config.worker_config import DEADLINES
from pontil.runtime.threads import ThreadFailures, TurnThread
from pontil.runtime.wire.links.keys import Keys, is_network

ADDRESS = "inproc://zeromq.zap.01"
VERSION = b"1.0"
# Version, request id, domain, address, identity, mechanism; then the credentials.
CREDENTIALS = 6


class ZapAuthenticator:
    """An authenticator that accepts only clients that have proven to own the key `public` (32 bytes).

    One for each context, started before its first server: without an authenticator libzmq accepts every client that
    knows the server's public key. Its thread owns its socket until `close`.
    """

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", public: bytes, failures: ThreadFailures | None = None
    ) -> None:
        self.public = public
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(ADDRESS)
        self.wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.poller = zmq.Poller()
        self.poller.register(self.socket, zmq.POLLIN)
        self.poller.register(self.wakeup, zmq.POLLIN)
        self.rejected = 0
        self.asked: Sequence[bytes] = ()
        self.thread = TurnThread(self.answer_next, "doorkeeper", failures, self.mend)
        self.thread.start()

    def close(self) -> None:
        """Stop the thread; no client is accepted any more. A second call changes nothing."""
        if self.socket.closed:
            return
        os.eventfd_write(self.wakeup, 1)
        self.thread.close()
        self.socket.close()
        os.close(self.wakeup)

    def answer_next(self) -> float | None:
        """Wait for the next question and answer it. Return None when woken for another reason: only `close` does."""
        if not any(source is self.socket for source, _ in self.poller.poll()):
            return None
        self.asked = self.socket.recv_multipart()
        self.socket.send_multipart(self.answer(self.asked))
        self.asked = ()
        return 0.0

    def mend(self, error: BaseException) -> None:
        """Answer a question that failed, so that the client asks again: a REP socket needs one answer to every
        question."""
        question, self.asked = self.asked, ()
        if question:
            self.socket.send_multipart([VERSION, *question[1:2], b"300", b"a fault of ours", b"", b""])

    def answer(self, question: Sequence[bytes]) -> list[bytes]:
        """Return the reply to one question: version, the question's id, status, text, user, metadata."""
        ours = question[CREDENTIALS - 1 : CREDENTIALS] == [b"CURVE"] and self.knows(question[CREDENTIALS:])
        self.rejected += not ours
        status = [b"200", b"OK"] if ours else [b"400", b"unknown key"]
        return [VERSION, *question[1:2], *status, b"", b""]

    def knows(self, credentials: Sequence[bytes]) -> bool:
        return len(credentials) == 1 and hmac.compare_digest(credentials[0], self.public)


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
