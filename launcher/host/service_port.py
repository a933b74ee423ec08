# SPDX-License-Identifier: Apache-2.0
"""The socket at which the proxies of a launch take connections."""

import socket
from collections.abc import Mapping
from types import MappingProxyType

from pontil.launcher.host.ports import bound_socket

NOTHING: Mapping[str, tuple[int, ...]] = MappingProxyType({})


class ServicePort:
    """One socket for all proxies, held by the launcher: a connection that no proxy has accepted yet is not a proxy's,
    and waits for another one or the next one when a proxy ends. The first proxy to start has it listen."""

    def __init__(self, address: tuple[str, int] | None) -> None:
        """Name the address. A launch without a proxy has None."""
        self.address = address
        self.socket: socket.socket | None = None

    def open(self) -> None:
        """Bind the socket. Raises LaunchError and OptionError."""
        if self.address is not None:
            self.socket = bound_socket("--port", *self.address)

    @property
    def handed(self) -> Mapping[str, tuple[int, ...]]:
        """The descriptors for a proxy, by the field of its configuration."""
        return NOTHING if self.socket is None else {"listeners": (self.socket.fileno(),)}

    def close(self) -> None:
        """Leave the socket to the proxies that run: the port is free once they have ended."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None
