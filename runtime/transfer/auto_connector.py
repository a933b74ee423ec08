# SPDX-License-Identifier: Apache-2.0
"""Choice of a connector for each peer: shared memory where the peer's pool can be opened from here, else RDMA where
both hosts have it and everyone on the network is trusted, else TCP."""

import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.errors import TransferError
from pontil.runtime.foundation.connectors import AUTO, CONNECTORS, missing_package, usable
from pontil.runtime.foundation.loopback import is_loopback
from pontil.runtime.transfer.connector import PLAIN_OPTIONS, ConnectorOptions, Pull, SliceConnector
from pontil.runtime.transfer.rdma import rdma_devices

logger = logging.getLogger("pontil.worker")

Opener = Callable[[KVStorage, Callable[[], None], ConnectorOptions], SliceConnector]


def opener(name: str) -> Opener:
    """Return what opens a connector of that name: its class."""
    module, _, found = CONNECTORS[name].target.partition(":")
    made: Opener = getattr(import_module(f"pontil.{module}"), found)
    return made


def has_rdma(options: ConnectorOptions) -> bool:
    """Return whether NIXL is to carry blocks between hosts: it and RDMA devices are here, and the network is trusted
    (decision 062)."""
    trusted = options.guard is None and not is_loopback(options.host)
    return trusted and missing_package(CONNECTORS["nixl"]) is None and bool(rdma_devices())


class AutoConnector:
    """The connector. It offers every connector to peers and chooses one for each."""

    def __init__(self, storage: KVStorage, wake: Callable[[], None], options: ConnectorOptions = PLAIN_OPTIONS) -> None:
        self.ways: dict[str, SliceConnector] = {}
        for name in usable(storage.staged, has_rdma(options)):
            try:
                self.ways[name] = opener(name)(storage, wake, options)
            except TransferError as error:
                if not CONNECTORS[name].packages:
                    raise
                logger.warning("blocks go over TCP and not over RDMA: %s", error)
        self.chosen: dict[str, SliceConnector] = {}

    def register(self) -> dict[str, Any]:
        return {"kind": AUTO, **{name: way.register() for name, way in self.ways.items()}}

    def attach(self, peer: str, descriptor: dict[str, Any], heads: range | None = None) -> None:
        """Attach a peer by the first connector that reaches it."""
        if peer in self.chosen:
            return
        faults: list[str] = []
        for name, way in self.ways.items():
            try:
                way.attach(peer, descriptor, heads)
            except TransferError as error:
                faults.append(f"over {name.upper()}: {error}" if faults else str(error))
            else:
                self.chosen[peer] = way
                return
        raise TransferError("; ".join(faults))

    def detach(self, peer: str) -> None:
        connector = self.chosen.pop(peer, None)
        if connector is not None:
            connector.detach(peer)

    def staged(self, peer: str) -> bool:
        connector = self.chosen.get(peer)
        return connector is None or connector.staged(peer)

    def lost(self) -> list[str]:
        return [peer for way in self.ways.values() for peer in way.lost()]

    def pull(self, pull: Pull) -> None:
        self.chosen.get(pull.peer, next(iter(self.ways.values()))).pull(pull)

    def poll(self) -> list[Pull]:
        return [pull for way in self.ways.values() for pull in way.poll()]

    def close(self) -> None:
        for way in self.ways.values():
            way.close()
