# SPDX-License-Identifier: Apache-2.0
"""The connector over NIXL (UCX): it reads peers' memory, on this host or others, by whatever transport UCX finds.

UCX neither encrypts nor asks who reads: whoever can reach the port of an agent can read and write the memory of its
process (decision 062).
"""

import queue
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config.worker_config import DEADLINES, Deadlines
from pontil.runtime.errors import TransferError
from pontil.runtime.foundation.loopback import is_loopback
from pontil.runtime.threads import ThreadFailures
from pontil.runtime.transfer.connector import (
    FOREIGN_BLOCKS,
    FOREIGN_HEADS,
    ConnectorOptions,
    Pair,
    PullResult,
    can_be_read,
    is_within,
)
from pontil.runtime.transfer.grants import Grant
from pontil.runtime.transfer.nixl.address import NixlAddress
from pontil.runtime.transfer.nixl.agent import NixlAgent
from pontil.runtime.transfer.nixl.pull import NixlPool, NixlPull
from pontil.runtime.transfer.nixl.reader import NixlPeer, NixlReader


class NixlConnector:
    """The connector. `wake` is called, from its thread, whenever `poll` has something new; `tickets` are the numbers of
    its pulls, by default its own; `host` is the address under which peers reach this machine."""

    agent_kind: type[NixlAgent] = NixlAgent

    def __init__(
        self, storage: KVStorage, wake: Callable[[], None], host: str = "127.0.0.1",
        tickets: Iterator[int] | None = None, deadlines: Deadlines = DEADLINES, failures: ThreadFailures | None = None,
    ) -> None:  # fmt: skip
        self.storage, self.wake, self.tickets = storage, wake, tickets or count(1)
        self.agent = self.agent_kind(host, deadlines.kv_stall_timeout)
        self.pool = NixlPool(self.agent, storage)
        own = NixlAddress(self.agent.name, self.agent.metadata(), self.pool.memory)
        self.descriptor = own.descriptor(self.agent.version)
        self.peers: dict[str, NixlPeer] = {}
        self.done: queue.SimpleQueue[PullResult] = queue.SimpleQueue()
        self.reader = NixlReader(self.pool, self.finish, failures)

    @classmethod
    def create(cls, storage: KVStorage, wake: Callable[[], None], options: ConnectorOptions) -> "NixlConnector":
        if options.guard is not None and not is_loopback(options.host):
            raise TransferError(
                "the connector nixl neither encrypts nor checks who reads, so it does not go with --keys across a "
                "network: leave --kv-connector at auto, or give --insecure instead of --keys on a network you trust"
            )
        return cls(storage, wake, options.host, options.tickets, options.deadlines, options.failures)

    def register(self) -> dict[str, Any]:
        return self.descriptor

    def attach(self, peer: str, descriptor: dict[str, Any], heads: range | None = None) -> None:
        """Attach a peer. The library learns of it in the connector's thread: a peer that it refuses is lost at once,
        and pulls from it fail with the reason."""
        if peer not in self.peers:
            heads = heads or self.storage.layout.kv_heads
            address = NixlAddress.read(descriptor, self.storage.slice_bytes(heads), heads, self.agent.version)
            self.peers[peer] = NixlPeer(address)
            self.reader.give(partial(self.reader.load, self.peers[peer]))

    def detach(self, peer: str) -> None:
        found = self.peers.pop(peer, None)
        if found is not None:
            self.reader.give(partial(self.reader.leave, found))

    def staged(self, peer: str) -> bool:
        return False

    def lost(self) -> list[str]:
        return [name for name, peer in self.peers.items() if peer.lost]

    def pull(
        self, peer: str, pairs: Sequence[Pair], slot: int, shown: Grant | None = None, heads: range | None = None
    ) -> int:
        ticket, held = next(self.tickets), self.storage.layout.kv_heads
        heads, found = heads or held, self.peers.get(peer)
        if found is None:
            self.finish(PullResult(ticket, "the peer is gone", None, 0, 0.0))
        elif not can_be_read(pairs, slot, found.address.pool.num_blocks):
            self.finish(PullResult(ticket, FOREIGN_BLOCKS, None, 0, 0.0))
        elif not is_within(heads, found.address.pool.heads, held):
            self.finish(PullResult(ticket, FOREIGN_HEADS, None, 0, 0.0))
        else:
            mark = self.storage.mark()
            made = NixlPull(ticket, found.address, tuple(pairs), slot, heads, mark, self.pool)
            self.reader.give(partial(self.reader.begin, found, made))
        return ticket

    def poll(self) -> list[PullResult]:
        done = []
        while not self.done.empty():
            done.append(self.done.get())
        return done

    def received(self, peer: str) -> int:
        found = self.peers.get(peer)
        return 0 if found is None else found.received

    def cancel(self, ticket: int) -> None:
        self.reader.give(partial(self.reader.drop, ticket))

    def close(self) -> None:
        self.peers.clear()
        self.reader.close()

    def finish(self, done: PullResult) -> None:
        self.done.put(done)
        self.wake()
