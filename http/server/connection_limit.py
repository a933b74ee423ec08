# SPDX-License-Identifier: Apache-2.0
"""A limit on connections below the limit on file descriptors, so that the process can always open the files it
needs."""

import logging
import resource
from collections.abc import Collection, Hashable

COMPLAIN_SECONDS = 60.0


class LogInterval:
    """One line per interval."""

    def __init__(self) -> None:
        self.complained: float | None = None

    def is_due(self, now: float) -> bool:
        """Return whether a line may be written now, and count it."""
        if self.complained is not None and now - self.complained <= COMPLAIN_SECONDS:
            return False
        self.complained = now
        return True


class WaitingConnections:
    """Waiting connections by the network of their client, those of a network in the order in which they were added.
    Every operation costs the same, however many there are.

    `sizes` has each network once, under the number of its connections; the highest number is `largest`.
    """

    def __init__(self) -> None:
        self.networks: dict[str, dict[Hashable, None]] = {}
        self.sizes: dict[int, dict[str, None]] = {}
        self.largest = 0

    def add(self, connection: Hashable, network: str) -> None:
        group = self.networks.setdefault(network, {})
        group[connection] = None
        self.resize(network, len(group) - 1, len(group))

    def remove(self, connection: Hashable, network: str) -> None:
        group = self.networks[network]
        del group[connection]
        self.resize(network, len(group) + 1, len(group))
        if not group:
            del self.networks[network]

    def resize(self, network: str, old: int, new: int) -> None:
        """Note that a network has one more or one less."""
        if old:
            del self.sizes[old][network]
            if not self.sizes[old]:
                del self.sizes[old]
        if new:
            self.sizes.setdefault(new, {})[network] = None
        if new > self.largest or self.largest not in self.sizes:
            self.largest = new

    @property
    def crowded(self) -> str:
        """The network with the most connections: of several, the one that has had so many for the longest."""
        return next(iter(self.sizes[self.largest]))

    @property
    def first(self) -> Hashable:
        """The connection that gives way first: the oldest of the network with the most."""
        return next(iter(self.networks[self.crowded]))


LOG = logging.getLogger("pontil.http")
MOST_CONNECTIONS = 4096
# Descriptors reserved for sockets of workers, pipes, files, and connections that are being closed.
KEPT_FREE = 256
# Lower bound, even where the descriptor limit is absurdly small.
LEAST_CONNECTIONS = 16
MOST_DESCRIPTORS = 1 << 20
# Connections that requests other than probes do not fill, and the share of few connections that this may be.
MOST_RESERVE = 64
RESERVED_SHARE = 8
REFUSAL = "the server has as many connections as it takes: try again in a moment"


class ConnectionLimit:
    """The connections of one server: those that wait for their client, to send a whole request or to take some of an
    answer, and those whose request is being served.

    A connection beyond the limit makes one that waits give way: the oldest of the network that has the most of them. So
    a network is sure of an equal share of the places that are left by those that are served, which are never closed.
    They leave a reserve, in which `probes`, the paths that are always answered, find a place.
    """

    def __init__(self, most: int, probes: Collection[str] = ()) -> None:
        self.most, self.probes = most, frozenset(probes)
        self.networks: dict[Hashable, str] = {}
        self.waiting = WaitingConnections()
        self.served: set[Hashable] = set()
        self.complaints = LogInterval()

    @property
    def reserve(self) -> int:
        return max(1, min(MOST_RESERVE, self.most // RESERVED_SHARE))

    def opens(self, connection: Hashable, network: str, now: float) -> Hashable | None:
        """Take a new connection. Return the one that has to be closed for it, which is itself where all others are
        being served."""
        self.networks[connection] = network
        self.waiting.add(connection, network)
        if len(self.networks) <= self.most:
            return None
        if self.complaints.is_due(now):
            LOG.warning(
                "%d connections are open, which is all that are kept: %d are being served, and of the others the oldest"
                " give way, now of %s with %d",
                self.most,
                len(self.served),
                self.waiting.crowded,
                self.waiting.largest,
            )
        first = self.waiting.first
        self.closes(first)
        return first

    def waits(self, connection: Hashable) -> None:
        """Note that a connection begins to wait: for a request, for the rest of one, or for room for its answer."""
        network = self.leaves(connection)
        if network is not None:
            self.waiting.add(connection, network)

    def has_room(self, path: str) -> bool:
        """Return whether a request for the path may be served now."""
        return path in self.probes or len(self.served) < self.most - self.reserve

    def serves(self, connection: Hashable) -> None:
        """Note that a request has come whole, and there is room for an answer: its connection stays until then."""
        if self.leaves(connection) is not None:
            self.served.add(connection)

    def closes(self, connection: Hashable) -> None:
        if self.leaves(connection) is not None:
            del self.networks[connection]

    def leaves(self, connection: Hashable) -> str | None:
        """Take a connection from those that wait or are served. Return its network; None if it has given way."""
        network = self.networks.get(connection)
        if network is not None and connection in self.served:
            self.served.remove(connection)
        elif network is not None:
            self.waiting.remove(connection, network)
        return network


def raise_descriptor_limit() -> None:
    """Raise the soft limit on open files to the hard limit: shells and containers often start with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target_limit = most_of(hard)
    if most_of(soft) < target_limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target_limit, hard))


def descriptor_limit() -> int:
    return most_of(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def most_of(limit: int) -> int:
    """Return the limit, capped at MOST_DESCRIPTORS."""
    return MOST_DESCRIPTORS if limit == resource.RLIM_INFINITY else min(limit, MOST_DESCRIPTORS)


def connections_within(descriptors: int) -> int:
    """Return the number of connections that fit within this many descriptors."""
    return max(LEAST_CONNECTIONS, min(MOST_CONNECTIONS, descriptors - KEPT_FREE))
