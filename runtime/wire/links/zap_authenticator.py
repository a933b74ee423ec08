# SPDX-License-Identifier: Apache-2.0
"""The ZAP authenticator (ZeroMQ RFC 27): tells libzmq which clients may connect to a server with keys."""

import hmac
import os
from collections.abc import Sequence

import zmq

from pontil.runtime.threads import ThreadFailures, TurnThread

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
        asked, self.asked = self.asked, ()
        if asked:
            self.socket.send_multipart([VERSION, *asked[1:2], b"300", b"a fault of ours", b"", b""])

    def answer(self, question: Sequence[bytes]) -> list[bytes]:
        """Return the reply to one question: version, the question's id, status, text, user, metadata."""
        ours = question[CREDENTIALS - 1 : CREDENTIALS] == [b"CURVE"] and self.knows(question[CREDENTIALS:])
        self.rejected += not ours
        status = [b"200", b"OK"] if ours else [b"400", b"unknown key"]
        return [VERSION, *question[1:2], *status, b"", b""]

    def knows(self, credentials: Sequence[bytes]) -> bool:
        return len(credentials) == 1 and hmac.compare_digest(credentials[0], self.public)
