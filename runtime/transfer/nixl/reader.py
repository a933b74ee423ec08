# SPDX-License-Identifier: Apache-2.0
"""The thread that reads from peers over NIXL: it makes every call of the library for peers and their pulls, looks for
the ends of reads with pauses that grow, and never waits for one peer alone."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pontil.runtime.errors import TransferError
from pontil.runtime.threads import ThreadFailures, TurnThread
from pontil.runtime.transfer.connector import FAULT, Pull, PullResult
from pontil.runtime.transfer.nixl.address import NixlAddress
from pontil.runtime.transfer.nixl.pull import NixlPool, NixlReads

JOIN_TIMEOUT = 5.0
# Seconds between two looks at reads in progress: doubled while nothing happens.
FIRST_PAUSE, LONGEST_PAUSE = 0.0002, 0.005
# A peer with no pulls is asked for a cell as often, to notice its end: the library tells of it only then.
ASK_EVERY = 1.0
CLOSING = "this worker is closing"


@dataclass(slots=True, eq=False)
class NixlPeer:
    """A peer, by its address. All but the address is changed by the reader's thread alone, which `wake` wakes. `asked`
    is the handle of a read that only shows whether the peer is there; `error` says why it cannot be read at all."""

    address: NixlAddress
    wake: Callable[[], None]
    pulls: list[NixlReads] = field(default_factory=list)
    received: int = 0
    asked: int | None = None
    used_at: float = 0.0
    error: str | None = None
    lost: bool = False
    leaving: bool = False

    @property
    def has_reads(self) -> bool:
        return bool(self.pulls) or self.asked is not None

    def cancel(self, pull: Pull) -> None:
        """Have the thread look at its pulls: one that was cancelled begins nothing more."""
        self.wake()


class NixlReader:
    """The thread and all that belongs to it. The engine's thread gives it commands; `finish` is called once for each
    pull. `users` counts the peers of each agent that the library knows."""

    def __init__(
        self, pool: NixlPool, finish: Callable[[Pull, PullResult], None], failures: ThreadFailures | None = None
    ) -> None:
        self.pool, self.agent, self.finish = pool, pool.agent, finish
        self.commands: deque[Callable[[], None]] = deque()
        self.known: list[NixlPeer] = []
        self.users: dict[str, int] = {}
        self.current: NixlReads | None = None
        self.quiet = 0
        self.thread = TurnThread(self.turn, "nixl-connector", failures, self.mend)
        self.thread.start()

    def give(self, command: Callable[[], None]) -> None:
        """Have the thread call one of the methods below, after those that it was given before."""
        self.commands.append(command)
        self.thread.wake()

    def close(self) -> None:
        """Stop reading, and close the agent. Where a read does not end in time, the agent is left: it still writes."""
        if self.thread.closing.is_set():
            return
        self.give(self.end_all)
        if self.thread.close(JOIN_TIMEOUT):
            self.agent.close(list(self.users))

    def turn(self) -> float | None:
        """Carry out the commands and look at every read. Return the time until something has to be looked at again."""
        while self.commands:
            self.commands.popleft()()
        progress = sum([self.step(peer) for peer in list(self.known)])
        self.quiet = 0 if progress else self.quiet + 1
        if any(peer.has_reads for peer in self.known):
            return min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self.quiet, 10)) if self.quiet else 0.0
        return ASK_EVERY if self.known and not self.thread.closing.is_set() else None

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
        if not peer.leaving or peer.has_reads or peer not in self.known:
            return
        self.known.remove(peer)
        name = peer.address.agent
        self.users[name] -= 1
        if not self.users[name]:
            del self.users[name]
            self.agent.remove(name)

    def begin(self, peer: NixlPeer, reads: NixlReads) -> None:
        if self.thread.closing.is_set() or peer.error is not None:
            self.finish(reads.pull, PullResult(peer.error or CLOSING))
        else:
            peer.pulls.append(reads)

    def end_all(self) -> None:
        for reads in [reads for peer in self.known for reads in peer.pulls]:
            reads.error = reads.error or CLOSING

    def step(self, peer: NixlPeer) -> int:
        """Go on with a peer's first pull, and with those that failed until they have ended. Return how many reads ended
        or began."""
        progress, is_first = self.look(peer), True
        for reads in list(peer.pulls):
            if not (reads.has_failed or is_first):
                continue
            is_first &= reads.has_failed
            self.current, before = reads, len(reads.digests)
            progress += reads.step()
            self.current = None
            peer.received += len(reads.digests) - before + (reads.epoch is not None)
            # Of a peer from which nothing ever came, any fault says that it cannot be reached.
            is_unreachable = reads.error is not None and not reads.pull.is_cancelled and not peer.received
            peer.lost |= reads.has_lost_peer or is_unreachable
            if reads.over:
                peer.pulls.remove(reads)
                peer.used_at, progress = time.monotonic(), progress + 1
                self.finish(reads.pull, reads.result())
        self.unload(peer)
        return progress

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
        reads, self.current = self.current, None
        if reads is not None:
            reads.fail(TransferError(FAULT.format(error)))
