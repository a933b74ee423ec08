# SPDX-License-Identifier: Apache-2.0
"""The sockets of a worker process."""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.threads import ThreadFailures
from pontil.runtime.transfer.security import TransferSecurity
from pontil.runtime.wire.links.keys import Keys
from pontil.runtime.wire.links.sockets import BaseSocket, PeerServer, Poller, WorkerSocket, open_context
from pontil.runtime.wire.messages import Hello, Message
from pontil.runtime.worker.links.proxy_link import ProxyLink
from pontil.runtime.worker.links.proxy_links import ProxyLinks

# Seconds for which the last messages to the proxies may still be on their way.
LINGER = 0.5


class WorkerSockets:
    """The sockets of one process, which others know by its `incarnation`.

    `opened` are those that it always has. `stale` counts messages that were for a predecessor at the same address.
    `closing` closes the sockets and what was opened over them, the latest first. `leaving` says what there is to say
    before, when the process ends in order.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self.incarnation = secrets.token_hex(8)
        self.keys = None if config.keys is None else Keys.of(config.keys)
        self.failures = ThreadFailures()
        self.closing, self.leaving = ExitStack(), ExitStack()
        self.context = open_context(self.keys, self.failures, config.deadlines.link_timeout)
        self.closing.callback(self.context.term)
        self.poller = Poller()
        self.closing.callback(self.poller.close)
        self.opened: list[BaseSocket] = []
        self.stale = 0

    def serve_peers(self) -> PeerServer:
        """Open the socket at which other workers reach this one."""
        made = PeerServer(self.context, self.config.peer_endpoint)
        self.add(made)
        return made

    def connect_proxies(self, hello: Hello) -> ProxyLinks:
        """Open the connections to all proxies, at which the worker registers with this introduction."""
        made = [WorkerSocket(self.context, self.incarnation, control) for control in self.config.controls]
        for one in made:
            self.add(one)
        return ProxyLinks([ProxyLink(one, hello) for one in made], made)

    def add(self, socket: BaseSocket) -> None:
        if not self.opened:
            self.closing.callback(self.close_opened)
        self.opened.append(socket)
        self.poller.register(socket)

    def is_mine(self, message: Message) -> bool:
        """Return whether a message was meant for this incarnation; one for a predecessor is stale."""
        mine = getattr(message, "receiver", None) == self.incarnation
        self.stale += not mine
        return mine

    def guard(self) -> TransferSecurity | None:
        """Return what protects one pool's blocks on a network, where the system has keys."""
        return None if self.keys is None else TransferSecurity(self.keys.transfer)

    def counters(self) -> dict[str, int]:
        """Return the counts under their names in heartbeats."""
        return {
            "stale_messages": self.stale,
            "malformed_frames": sum(socket.malformed for socket in self.opened),
            **{f"thread_failures_{name}": count for name, count in self.failures.counts().items()},
        }

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Close everything if what is to be opened here cannot be."""
        with self.closing as opened:
            yield
            self.closing = opened.pop_all()

    def close_opened(self) -> None:
        for one in self.opened:
            one.close(LINGER if isinstance(one, WorkerSocket) else 0.0)
