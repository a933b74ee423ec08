# SPDX-License-Identifier: Apache-2.0
"""The proxy's end of the messages to and from its workers."""

from collections.abc import Callable, Sequence

from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.threads import ThreadFailures
from pontil.runtime.wire.links.keys import Keys
from pontil.runtime.wire.links.sockets import ControlServer, open_context
from pontil.runtime.wire.messages import Message

# Seconds that the last messages, cancels above all, have to leave the socket when the proxy ends.
LINGER = 0.2


class ControlLink:
    """The control endpoint, open from `bind` on, and the system's `keys`, where it has some."""

    def __init__(self, config: ProxyConfig, threads: ThreadFailures) -> None:
        self.endpoint = config.control
        self.keys = None if config.keys is None else Keys.of(config.keys)
        self.context = open_context(self.keys, threads, config.link_timeout)
        self.server: ControlServer | None = None
        self.malformed_seen = 0

    def bind(self) -> str:
        """Open the endpoint and return its address. Raises PontilError when it cannot be bound."""
        self.server = ControlServer(self.context, self.endpoint)
        return self.server.endpoint

    def listen(self, take: Callable[[Sequence[Message]], None]) -> None:
        assert self.server is not None, "bind first"
        self.server.listen(take)

    def send(self, message: Message) -> bool:
        return self.server is not None and self.server.send(message)

    def new_malformed(self) -> int:
        """Return how many malformed frames came since the last call."""
        before, self.malformed_seen = self.malformed_seen, 0 if self.server is None else self.server.malformed
        return self.malformed_seen - before

    def close(self) -> None:
        if self.server is not None:
            self.server.close(LINGER)
        self.context.term()
