# SPDX-License-Identifier: Apache-2.0
"""The connector over NIXL (UCX): it reads peers' memory, on this host or others, by whatever transport UCX finds.

One thread makes every call of the library for peers and their pulls, looks for their ends with pauses that grow, and
never waits for one peer alone. UCX neither encrypts nor asks who reads: whoever can reach the port of an agent can read
and write the memory of its process (decision 062).
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.errors import TransferError
from pontil.runtime.foundation.loopback import is_loopback
from pontil.runtime.threads import GuardedThread, ThreadFailures
from pontil.runtime.transfer.connector import (
    FAULT,
    FOREIGN_BLOCKS,
    FOREIGN_HEADS,
    ConnectorOptions,
    Pair,
    PullResult,
    can_be_read,
    is_within,
)
from pontil.runtime.transfer.grants import Grant
from pontil.runtime.transfer.nixl_address import NixlAddress
from pontil.runtime.transfer.nixl_agent import NixlAgent
from pontil.runtime.transfer.nixl_pull import NixlPool, NixlPull

JOIN_TIMEOUT = 5.0
# Seconds between two looks at reads in progress: doubled while nothing happens.
FIRST_PAUSE, LONGEST_PAUSE = 0.0002, 0.005
# A peer with no pulls is asked for a cell as often, to notice its end: the library tells of it only then.
ASK_EVERY = 1.0


@dataclass(slots=True, eq=False)
class NixlPeer:
    """A peer, by its address. All but the address is changed by the connector's thread alone. `asked` is the handle of
    a read that only shows whether the peer is there; `error` says why it cannot be read at all."""

    address: NixlAddress
    pulls: list[NixlPull] = field(default_factory=list)
    received: int = 0
    asked: int | None = None
    used_at: float = 0.0
    error: str | None = None
    lost: bool = False
    leaving: bool = False


class NixlConnector:
    """The connector. `wake` is called, from its thread, whenever `poll` has something new; `tickets` are the numbers of
    its pulls, by default its own; `host` is the address under which peers reach this machine."""

    def __init__(
        self, storage: KVStorage, wake: Callable[[], None], host: str = "127.0.0.1",
        tickets: Iterator[int] | None = None, failures: ThreadFailures | None = None,
    ) -> None:  # fmt: skip
        self.storage, self.wake, self.tickets = storage, wake, tickets or count(1)
        self.agent = NixlAgent(host)
        self.pool = NixlPool(self.agent, storage)
        self.peers: dict[str, NixlPeer] = {}
        self.commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[PullResult] = queue.SimpleQueue()
        self.stopping = threading.Event()
        # The rest belongs to the thread. `users` counts the peers of each agent that the library knows.
        self.known: list[NixlPeer] = []
        self.users: dict[str, int] = {}
        self.current: NixlPull | None = None
        self.quiet = 0
        self.thread = GuardedThread(self.run, "over-nixl", failures, self.mend)
        self.thread.start()

    @classmethod
    def create(cls, storage: KVStorage, wake: Callable[[], None], options: ConnectorOptions) -> "NixlConnector":
        if options.guard is not None and not is_loopback(options.host):
            raise TransferError(
                "the connector nixl neither encrypts nor checks who reads, so it does not go with --keys across a "
                "network: leave --kv-connector at auto, or give --insecure instead of --keys on a network you trust"
            )
        return cls(storage, wake, options.host, options.tickets, options.failures)

    def register(self) -> dict[str, Any]:
        own = NixlAddress(self.agent.name, self.agent.metadata(), self.pool.memory)
        return own.descriptor(self.agent.library.version)

    def attach(self, peer: str, descriptor: dict[str, Any], heads: range | None = None) -> None:
        """Attach a peer. The library learns of it in the connector's thread: a peer that it refuses is lost at once,
        and pulls from it fail with the reason."""
        if peer not in self.peers:
            heads = heads or self.storage.layout.kv_heads
            version = self.agent.library.version
            address = NixlAddress.read(descriptor, self.storage.slice_bytes(heads), heads, version)
            self.peers[peer] = NixlPeer(address)
            self.commands.put(partial(self.load, self.peers[peer]))

    def detach(self, peer: str) -> None:
        found = self.peers.pop(peer, None)
        if found is not None:
            self.commands.put(partial(self.leave, found))

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
            self.commands.put(partial(self.begin, found, made))
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
        self.commands.put(partial(self.drop, ticket))

    def close(self) -> None:
        """Stop reading. Where a read does not end in time, the agent is left alone: it may still write."""
        if self.stopping.is_set():
            return
        self.stopping.set()
        self.commands.put(self.end_all)
        self.peers.clear()
        self.thread.join(JOIN_TIMEOUT)
        if not self.thread.is_alive():
            self.agent.close(list(self.users))

    def finish(self, done: PullResult) -> None:
        self.done.put(done)
        self.wake()

    # Everything below is called by the connector's thread.

    def run(self) -> None:
        while not self.stopping.is_set() or self.busy or not self.commands.empty():
            self.take_commands()
            ended = sum([self.step(peer) for peer in list(self.known)])
            self.quiet = 0 if ended else self.quiet + 1

    @property
    def busy(self) -> bool:
        return any(peer.pulls or peer.asked is not None for peer in self.known)

    def take_commands(self) -> None:
        """Carry out the commands that are there; with nothing to look at, wait for one."""
        timeout = ASK_EVERY if self.known else None
        if self.busy:
            timeout = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self.quiet, 10)) if self.quiet else 0.0
        try:
            self.commands.get(timeout=timeout)()
            while True:
                self.commands.get_nowait()()
        except queue.Empty:
            return

    def load(self, peer: NixlPeer) -> None:
        """Make a peer's agent known to the library. Several peers may be of one agent."""
        name = peer.address.agent
        try:
            if name not in self.users:
                self.agent.add(name, peer.address.metadata)
            self.users[name] = self.users.get(name, 0) + 1
        except TransferError as error:
            peer.error, peer.lost = str(error), True
            return
        peer.used_at = time.monotonic()
        self.known.append(peer)

    def leave(self, peer: NixlPeer) -> None:
        peer.leaving = True
        self.unload(peer)

    def unload(self, peer: NixlPeer) -> None:
        """Forget a peer that is leaving, once its reads have ended."""
        if not peer.leaving or peer.pulls or peer.asked is not None or peer not in self.known:
            return
        self.known.remove(peer)
        name = peer.address.agent
        self.users[name] -= 1
        if not self.users[name]:
            del self.users[name]
            self.agent.remove(name)

    def begin(self, peer: NixlPeer, pull: NixlPull) -> None:
        if self.stopping.is_set() or peer.error is not None:
            self.finish(PullResult(pull.ticket, peer.error or "this worker is closing", None, 0, 0.0))
        else:
            peer.pulls.append(pull)

    def drop(self, ticket: int) -> None:
        """Cancel a pull: it begins nothing more."""
        for pull in [pull for peer in self.known for pull in peer.pulls if pull.ticket == ticket]:
            pull.error = pull.error or "cancelled"

    def end_all(self) -> None:
        for pull in [pull for peer in self.known for pull in peer.pulls]:
            pull.error = pull.error or "this worker is closing"

    def step(self, peer: NixlPeer) -> int:
        """Go on with a peer's first pull, and with those that failed until they have ended. Return how many reads ended
        or began."""
        moved, is_first = self.look(peer), True
        for pull in list(peer.pulls):
            if pull.error is None and not is_first:
                continue
            is_first &= pull.error is not None
            self.current, before = pull, len(pull.digests)
            moved += pull.step()
            self.current = None
            peer.received += len(pull.digests) - before + (pull.epoch is not None)
            peer.lost |= pull.has_lost_peer
            if pull.over:
                peer.pulls.remove(pull)
                peer.used_at, moved = time.monotonic(), moved + 1
                self.finish(pull.result())
        self.unload(peer)
        return moved

    def look(self, peer: NixlPeer) -> int:
        """Ask an idle peer for a cell, to notice its end. Return 1 when it answered."""
        try:
            if peer.asked is not None:
                if not self.agent.ended(peer.asked):
                    return 0
                self.forget_asked(peer)
                return 1
            if not (peer.pulls or peer.lost or peer.leaving) and time.monotonic() - peer.used_at >= ASK_EVERY:
                peer.asked = self.pool.read_cell(peer.address, 0, 0)
        except TransferError:
            peer.lost = True
            self.forget_asked(peer)
        return 0

    def forget_asked(self, peer: NixlPeer) -> None:
        if peer.asked is not None:
            self.agent.release(peer.asked)
        peer.asked, peer.used_at = None, time.monotonic()

    def mend(self, error: BaseException) -> None:
        """Fail the current pull after an exception in the thread."""
        pull, self.current = self.current, None
        if pull is not None:
            pull.fail(TransferError(FAULT.format(error)))
