# SPDX-License-Identifier: Apache-2.0
"""Choice of a connector for each peer: shared memory where the peer's pool can be opened from here, else RDMA between
GPUs where both hosts have it and everyone on the network is trusted, else TCP."""

import logging
from collections import deque
from collections.abc import Callable
from importlib import import_module
from typing import Any

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.errors import TransferError
from pontil.runtime.foundation.connectors import AUTO, CONNECTORS, missing_package, usable
from pontil.runtime.foundation.loopback import is_loopback
from pontil.runtime.transfer.connector import PLAIN_OPTIONS, ConnectorOptions, Pull, SliceConnector
from pontil.runtime.transfer.rdma import rdma_devices

# Peers that were never reached by the first way that took them: a few of a fleet.
MOST_FAILED = 256

logger = logging.getLogger("pontil.worker")

Opener = Callable[[KVStorage, Callable[[], None], ConnectorOptions], SliceConnector]


def opener(name: str) -> Opener:
    """Return what opens a connector of that name: its class."""
    module, _, class_name = CONNECTORS[name].target.partition(":")
    connector_class: Opener = getattr(import_module(f"pontil.{module}"), class_name)
    return connector_class


def has_rdma(storage: KVStorage, options: ConnectorOptions) -> bool:
    """Return whether NIXL is to carry blocks between hosts: it and a port for this pool's GPU are here, and the network
    is trusted (decision 062). A host's memory is never taken for it: what is registered there must not be given
    back."""
    is_trusted = options.guard is None and not is_loopback(options.host)
    if storage.memory is None or not is_trusted or missing_package(CONNECTORS["nixl"]) is not None:
        return False
    return storage.memory.pci_address() is not None and bool(rdma_devices())


class AutoConnector:
    """The connector. It offers every connector to peers and chooses one for each. That one reaches a peer is known for
    certain only of the `proven`, from which a pull by it has succeeded; `failed` has the latest peers that were lost
    before, each with the name of the way that did not reach it: the others are tried before it."""

    def __init__(self, storage: KVStorage, wake: Callable[[], None], options: ConnectorOptions = PLAIN_OPTIONS) -> None:
        self.ways: dict[str, SliceConnector] = {}
        for name in usable(storage.staged, has_rdma(storage, options)):
            try:
                self.ways[name] = opener(name)(storage, wake, options)
            except TransferError as error:
                if not CONNECTORS[name].packages:
                    raise
                logger.warning("blocks go over TCP and not over RDMA: %s", error)
        self.chosen: dict[str, str] = {}
        self.proven: set[str] = set()
        self.failed: deque[tuple[str, str]] = deque(maxlen=MOST_FAILED)

    def register(self) -> dict[str, Any]:
        return {"kind": AUTO, **{name: way.register() for name, way in self.ways.items()}}

    def attach(self, peer: str, descriptor: dict[str, Any], heads: range | None = None) -> None:
        """Attach a peer by the first connector that reaches it."""
        if peer in self.chosen:
            return
        faults: list[str] = []
        for name in sorted(self.ways, key=lambda name: (peer, name) in self.failed):
            try:
                self.ways[name].attach(peer, descriptor, heads)
            except TransferError as error:
                faults.append(f"over {name.upper()}: {error}" if faults else str(error))
            else:
                self.chosen[peer] = name
                return
        raise TransferError("; ".join(faults))

    def detach(self, peer: str) -> None:
        name = self.chosen.pop(peer, None)
        self.proven.discard(peer)
        if name is not None:
            self.ways[name].detach(peer)

    def staged(self, peer: str) -> bool:
        return peer not in self.chosen or self.ways[self.chosen[peer]].staged(peer)

    def lost(self) -> list[str]:
        lost = [(peer, name) for name, way in self.ways.items() for peer in way.lost()]
        self.failed += [pair for pair in lost if pair[0] not in self.proven and pair not in self.failed]
        return [peer for peer, _ in lost]

    def pull(self, pull: Pull) -> None:
        self.ways[self.chosen.get(pull.peer, next(iter(self.ways)))].pull(pull)

    def poll(self) -> list[Pull]:
        pulls = [pull for way in self.ways.values() for pull in way.poll()]
        self.proven.update(pull.peer for pull in pulls if pull.peer in self.chosen and pull.end.error is None)
        return pulls

    def close(self) -> None:
        for way in self.ways.values():
            way.close()
