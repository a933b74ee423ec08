# SPDX-License-Identifier: Apache-2.0
"""The connector over NIXL (UCX): it reads peers' memory, on this host or others, by whatever transport UCX finds.

UCX neither encrypts nor asks who reads: whoever can reach the port of an agent can read and write the memory of its
process (decision 062).
"""

import queue
from collections.abc import Callable
from functools import partial
from typing import Any

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.errors import TransferError
from pontil.runtime.foundation.loopback import is_loopback
from pontil.runtime.transfer.connector import PLAIN_OPTIONS, ConnectorOptions, Pull, PullResult, objection
from pontil.runtime.transfer.nixl.address import NixlAddress
from pontil.runtime.transfer.nixl.agent import NixlAgent
from pontil.runtime.transfer.nixl.pull import NixlPool, NixlReads
from pontil.runtime.transfer.nixl.reader import NixlPeer, NixlReader


class NixlConnector:
    """The connector. `wake` is called, from its thread, whenever `poll` has something new."""

    agent_kind: type[NixlAgent] = NixlAgent

    def __init__(self, storage: KVStorage, wake: Callable[[], None], options: ConnectorOptions = PLAIN_OPTIONS) -> None:
        """Raises TransferError where the network is not trusted, and without the library."""
        if options.guard is not None and not is_loopback(options.host):
            raise TransferError(
                "the connector nixl neither encrypts nor checks who reads, so it does not go with --keys across a "
                "network: leave --kv-connector at auto, or give --insecure instead of --keys on a network you trust"
            )
        self.storage, self.wake = storage, wake
        gpu = None if storage.memory is None else storage.memory.pci_address()
        self.agent = self.agent_kind(options.host, options.deadlines.kv_stall_timeout, gpu)
        self.pool = NixlPool(self.agent, storage)
        address = NixlAddress(self.agent.name, self.agent.metadata(), self.pool.memory)
        self.descriptor = address.descriptor(self.agent.version)
        self.peers: dict[str, NixlPeer] = {}
        self.done: queue.SimpleQueue[Pull] = queue.SimpleQueue()
        self.reader = NixlReader(self.pool, self.finish, options.failures)

    def register(self) -> dict[str, Any]:
        return self.descriptor

    def attach(self, peer: str, descriptor: dict[str, Any], heads: range | None = None) -> None:
        """Attach a peer. The library learns of it in the connector's thread: a peer that it refuses is lost at once,
        and pulls from it fail with the reason."""
        if peer not in self.peers:
            heads = heads or self.storage.layout.kv_heads
            address = NixlAddress.read(descriptor, self.storage.slice_bytes(heads), heads, self.agent.version)
            self.peers[peer] = NixlPeer(address, self.reader.thread.wake)
            self.reader.give(partial(self.reader.load, self.peers[peer]))

    def detach(self, peer: str) -> None:
        nixl_peer = self.peers.pop(peer, None)
        if nixl_peer is not None:
            self.reader.give(partial(self.reader.leave, nixl_peer))

    def staged(self, peer: str) -> bool:
        return False

    def lost(self) -> list[str]:
        return [name for name, peer in self.peers.items() if peer.lost]

    def pull(self, pull: Pull) -> None:
        kv_heads, nixl_peer = self.storage.layout.kv_heads, self.peers.get(pull.peer)
        error = objection(pull, None if nixl_peer is None else nixl_peer.address.pool, kv_heads)
        if nixl_peer is None or error is not None:
            self.finish(pull, PullResult(error))
        else:
            pull.reader = nixl_peer
            reads = NixlReads(pull, nixl_peer.address, pull.heads or kv_heads, self.storage.mark(), self.pool)
            self.reader.give(partial(self.reader.begin, nixl_peer, reads))

    def poll(self) -> list[Pull]:
        pulls = []
        while not self.done.empty():
            pulls.append(self.done.get())
        return pulls

    def close(self) -> None:
        self.peers.clear()
        self.reader.close()

    def finish(self, pull: Pull, result: PullResult) -> None:
        pull.result = result
        self.done.put(pull)
        self.wake()
