# SPDX-License-Identifier: Apache-2.0
"""Connections without a whole request, and which of them is the first to give way."""

from collections.abc import Hashable


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
