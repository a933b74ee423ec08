# SPDX-License-Identifier: Apache-2.0
"""Keys of the world's sockets: what a handshake by CURVE comes to, as libzmq has it, and the socket by which the
product's own ZAP authenticator is asked. Nothing is encrypted: nobody reads on the way."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import zmq
from zmq.utils import z85

from pontil.runtime.wire.simulated.network import WireLink
from pontil.runtime.wire.simulated.processes import WorldProcess
from pontil.runtime.wire.simulated.wire_sockets import WireContext

# The name of the thread that answers the questions.
ANSWERS = "doorkeeper"
VERSION, DOMAIN, ADDRESS, MECHANISM = b"1.0", b"pontil", b"10.0.0.2", b"CURVE"
ACCEPTED = b"200"
# Values of the events of a handshake that failed: a mechanism that is not the peer's, and a key that is not accepted.
OTHER_MECHANISM, REFUSED = 0x11000002, 400


class ZapSocket:
    """Stands for the REP socket of a process's ZAP authenticator."""

    def __init__(self, process: WorldProcess) -> None:
        self.process = process
        self.inbox: deque[tuple[WireLink, list[bytes]]] = deque()
        # The connections whose questions were read and not answered.
        self.asked: deque[WireLink] = deque()
        self.closed = False

    def setsockopt(self, option: int, value: Any) -> None:
        return

    def bind(self, endpoint: str) -> None:
        self.process.zap = self

    def ask(self, link: WireLink, public: bytes) -> None:
        """Have the authenticator decide who may connect."""
        question = [VERSION, b"1", DOMAIN, ADDRESS, b"", MECHANISM, z85.decode(public)]
        self.inbox.append((link, question))
        for thread in self.process.threads:
            if thread.name == ANSWERS:
                thread.turn_after(0.0)

    def recv_multipart(self) -> list[bytes]:
        link, question = self.inbox.popleft()
        self.asked.append(link)
        return question

    def send_multipart(self, reply: Sequence[bytes]) -> None:
        link = self.asked.popleft()
        if reply[2] == ACCEPTED:
            link.welcome()
        else:
            link.refuse(zmq.EVENT_HANDSHAKE_FAILED_AUTH, int(reply[2]))

    def close(self) -> None:
        self.closed, self.process.zap = True, None


class KeyedContext(WireContext):
    """Stands for zmq.Context, also for an authenticator."""

    def socket(self, kind: int) -> Any:
        return ZapSocket(self.process) if kind == zmq.REP else super().socket(kind)


def examine(link: WireLink) -> None:
    """Decide about a new connection by the keys of both ends. Without an authenticator, who knows the server's public
    key and has any of his own may connect."""
    server, client = link.router, link.dealer
    if server.curve_server != bool(client.curve_serverkey):
        link.refuse(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, OTHER_MECHANISM)
    elif not server.curve_server:
        link.welcome()
    elif zmq.curve_public(server.curve_secretkey) != client.curve_serverkey or not owns_its_key(link):
        # The server cannot read the first word, and hangs up; the client tries again.
        link.cut()
    elif server.process.zap is None:
        link.welcome()
    else:
        server.process.zap.ask(link, client.curve_publickey)


def is_network(endpoint: str) -> bool:
    """Return what the product's function of this name does, which may not be imported before the stand-ins are."""
    return endpoint.startswith("tcp:")


def owns_its_key(link: WireLink) -> bool:
    is_own: bool = zmq.curve_public(link.dealer.curve_secretkey) == link.dealer.curve_publickey
    return is_own
