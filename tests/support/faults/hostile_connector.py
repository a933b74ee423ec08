# SPDX-License-Identifier: Apache-2.0
"""A connector that misbehaves in every way that its contract permits, and in some that it forbids.

It keeps the one promise that cannot be checked: it does not write to a pull's blocks after it reported the end of the
pull.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import count

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.transfer.connector import Pair, PullResult, SliceConnector
from pontil.runtime.transfer.forwarding_connector import ForwardingConnector
from pontil.runtime.transfer.grants import Grant
from pontil.runtime.transfer.shm.connector import ShmConnector
from pontil.runtime.transfer.shm.copying_connector import CopyJob

NEVER = 1 << 60


# A function that opens the connector inside.
Inner = Callable[[KVStorage, Callable[[], None]], SliceConnector]


class Mischief(Enum):
    """Faults of a pull. STUCK ignores even its cancellation; LATE reads after many polls; SCRIBBLE writes garbage until
    it ends with an error; EMPTY reports success and copies nothing."""

    NONE = "none"
    DELAY = "delay"
    LATE = "late"
    STALL = "stall"
    STUCK = "stuck"
    TWICE = "twice"
    CORRUPT = "corrupt"
    EMPTY = "empty"
    ERROR = "error"
    SCRIBBLE = "scribble"
    STRANGER = "stranger"


# Kinds that end by themselves or on cancellation, as every connector must.
FINITE = tuple(kind for kind in Mischief if kind is not Mischief.STUCK)
DELAYS = {Mischief.DELAY: 3, Mischief.LATE: 4, Mischief.SCRIBBLE: 4, Mischief.STALL: NEVER, Mischief.STUCK: NEVER}


class PullAtOnce(ShmConnector):
    """Connector that copies in the caller's thread, before `pull` returns."""

    def pull(
        self, peer: str, pairs: Sequence[Pair], slot: int, shown: Grant | None = None, heads: range | None = None
    ) -> int:
        ticket, pool = next(self.tickets), self.peers.get(peer)
        if pool is None:
            self.finish(PullResult(ticket, "the peer is gone", None, 0, 0.0))
        else:
            self.finish(self.copy(CopyJob(ticket, pool, tuple(pairs), slot, heads, self.storage.mark())))
        return ticket


@dataclass(slots=True)
class HeldPull:
    """A pull that has not ended for the caller. `begins` and `ends` are counted in polls; `done` is its result."""

    ticket: int
    peer: str
    pairs: list[Pair]
    slot: int
    kind: Mischief
    begins: int
    ends: int
    heads: range | None = None
    begun: bool = False
    done: PullResult | None = None
    cancelled: bool = False


class HostileConnector(ForwardingConnector):
    """Wrapper of a connector that copies. `choose` returns the fault of the next pull, none by default. With
    `backwards`, results due in one poll are returned in reverse order."""

    def __init__(self, storage: KVStorage, wake: Callable[[], None], inner: Inner = ShmConnector) -> None:
        super().__init__(inner(storage, wake))
        self.storage, self.wake = storage, wake
        self.tickets, self.turn, self.backwards = count(1), 0, False
        self.choose: Callable[[], Mischief] = lambda: Mischief.NONE
        self.held: dict[int, HeldPull] = {}
        self.inside: dict[int, HeldPull] = {}

    def pull(
        self, peer: str, pairs: Sequence[Pair], slot: int, shown: Grant | None = None, heads: range | None = None
    ) -> int:
        kind, ticket = self.choose(), next(self.tickets)
        wait = DELAYS.get(kind, 0)
        late = kind in (Mischief.LATE, Mischief.SCRIBBLE, Mischief.STALL, Mischief.STUCK)
        held = HeldPull(ticket, peer, list(pairs), slot, kind, self.turn + wait if late else 0, self.turn + wait, heads)
        self.held[ticket] = held
        self.begin(held)
        return ticket

    def begin(self, held: HeldPull) -> None:
        """Start a pull that is due. EMPTY reads the cell and copies nothing."""
        if held.begun or held.begins > self.turn:
            return
        held.begun = True
        pairs = [] if held.kind is Mischief.EMPTY else held.pairs
        self.inside[self.inner.pull(held.peer, pairs, held.slot, heads=held.heads)] = held

    def cancel(self, ticket: int) -> None:
        held = self.held.get(ticket)
        if held is not None and held.kind is not Mischief.STUCK:
            held.cancelled, held.ends = True, self.turn + (held.kind is Mischief.SCRIBBLE)
            inner = next((inner for inner, one in self.inside.items() if one is held), None)
            if inner is not None:
                self.inner.cancel(inner)
            self.wake()

    def poll(self) -> list[PullResult]:
        self.turn += 1
        for held in list(self.held.values()):
            if held.kind is Mischief.SCRIBBLE:
                self.storage.shared[[ours for _, ours in held.pairs]] = 0xAA
            elif not held.cancelled:
                self.begin(held)
        for done in self.inner.poll():
            held = self.inside.pop(done.ticket)
            held.done = self.spoil(held, done)
        due = [held for held in self.held.values() if held.ends <= self.turn and (held.done or not held.begun)]
        ends = [end for held in due for end in self.end(held)]
        return ends[::-1] if self.backwards else ends

    def spoil(self, held: HeldPull, done: PullResult) -> PullResult:
        """Return the result to report for a pull that has ended inside. The digests are always those of the actual
        blocks."""
        ours = [block for _, block in held.pairs]
        if done.error:
            return done
        if held.kind is Mischief.ERROR:
            return replace(done, error="the network is down", epoch=None, digests=[])
        storage = self.storage
        heads = held.heads or storage.layout.kv_heads
        if held.kind is Mischief.CORRUPT and ours:
            storage.slices(storage.bytes, storage.layout.kv_heads, heads)[ours[-1], 0, 5] += 1
        return replace(done, bytes=len(ours) * storage.slice_bytes(heads), digests=storage.digests(ours, heads))

    def end(self, held: HeldPull) -> list[PullResult]:
        del self.held[held.ticket]
        done = held.done or PullResult(held.ticket, "cancelled" if held.cancelled else "nothing came", None, 0, 0.0)
        done = replace(done, ticket=held.ticket)
        if held.kind is Mischief.STRANGER:
            return [replace(done, ticket=held.ticket + 1_000_000), done]
        return [done, done] if held.kind is Mischief.TWICE else [done]

    def close(self) -> None:
        super().close()
        for held in self.held.values():
            held.ends, held.cancelled = 0, True
