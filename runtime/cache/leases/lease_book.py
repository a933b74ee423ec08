# SPDX-License-Identifier: Apache-2.0
"""A worker's book of leases: which blocks it keeps, for whom, and until when.

A lease is one more owner of each of its blocks, so that eviction, which takes idle blocks, needs not know of it, and a
step costs the same with a thousand leases as with none. Blocks that several leases share are kept once, and each lease
pays for all of its own: who comes second must not ride on a lease that another one may end.
"""

from collections import Counter
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from pontil.runtime.cache.leases.lease import EXPIRED, REFUNDED, RELEASED, ByteSeconds, PrefixLease
from pontil.runtime.cache.pool import BlockPool

# Ends in the heap that leases have no longer, beside as many as there are leases.
STALE_ENDS = 64


class LeaseRefused(Exception):
    """A lease that is not granted; the text says why, with figures."""


@dataclass(frozen=True, slots=True)
class LeaseBudget:
    """The most that leases may hold: `blocks` of the pool in all, and `owner_bytes` of each owner; None: what the
    blocks allow."""

    blocks: int
    owner_bytes: int | None = None

    @classmethod
    def of(cls, share: float, capacity: int, longest: int, owner_bytes: int | None = None) -> "LeaseBudget":
        """Return that of a pool: a share of it, and no block that the longest request may need. So each request that
        would run in an empty pool runs beside all leases, and no lease has to give way."""
        return cls(max(0, min(int(share * capacity), capacity - longest)), owner_bytes)


@dataclass(slots=True)
class LeaseBook:
    """The leases on the blocks of a pool, of so many bytes each. Not thread-safe: the engine's thread owns it. The
    caller passes the time, by a monotonic clock.

    Conservation: `settled` has what became of the leases that ended; there granted = held + released + refunded. Each
    lease is one owner of each of its blocks, and `pins` counts the leases of a block.

    Leases that changed are in `changed` until they are told. `promised` has room for prompts that are being computed.
    """

    pool: BlockPool
    block_bytes: int
    block_size: int
    budget: LeaseBudget
    leases: dict[str, PrefixLease] = field(default_factory=dict)
    pins: Counter[int] = field(default_factory=Counter)
    owner_blocks: Counter[str] = field(default_factory=Counter)
    promised: dict[str, tuple[str, int]] = field(default_factory=dict)
    ends: list[tuple[float, str]] = field(default_factory=list)
    changed: dict[str, PrefixLease] = field(default_factory=dict)
    settled: ByteSeconds = field(default_factory=ByteSeconds)

    @property
    def room(self) -> int:
        """The blocks for which there may be more leases."""
        return max(0, self.budget.blocks - len(self.pins) - sum(count for _, count in self.promised.values()))

    def promise(self, name: str, owner: str, count: int) -> None:
        """Keep room for a lease of so many blocks until it is granted or `forgo` is called. Raises LeaseRefused."""
        self.check_owner(owner, count)
        if count > self.room:
            raise LeaseRefused(
                f"the lease would hold {self.told(count)}, and leases may hold {self.told(self.room)} more of this "
                f"worker's KV memory now, of {self.told(self.budget.blocks)} in all"
            )
        self.promised[name] = owner, count

    def check_owner(self, owner: str, count: int) -> None:
        most = self.budget.owner_bytes
        promised = sum(blocks for whose, blocks in self.promised.values() if whose == owner)
        has = (self.owner_blocks[owner] + promised) * self.block_bytes
        if most is not None and has + count * self.block_bytes > most:
            raise LeaseRefused(
                f"the lease would hold {self.told(count)}, and the key's leases hold {has} bytes of the {most} that "
                "they may hold"
            )

    def told(self, count: int) -> str:
        return f"{count * self.block_bytes} bytes"

    def forgo(self, name: str) -> None:
        self.promised.pop(name, None)

    def grant(self, lease: PrefixLease, now: float) -> None:
        """Keep the blocks of a lease, whose term has begun. Raises LeaseRefused where they are not all here, or not
        all that it was promised can be kept."""
        self.forgo(lease.id)
        if lease.id in self.leases:
            raise LeaseRefused("a lease of this name is held")
        self.check_owner(lease.owner, len(lease.keys))
        lease.blocks = tuple(self.pool.index.leading(lease.keys))
        if len(lease.blocks) < len(lease.keys):
            here, all_blocks = len(lease.blocks), len(lease.keys)
            raise LeaseRefused(f"only {here * self.block_size} of {all_blocks * self.block_size} tokens are here")
        fresh = sum(block not in self.pins for block in lease.blocks)
        if fresh > self.room or not self.pool.reserve(0, lease.blocks):
            raise LeaseRefused(
                f"leases may hold {self.told(min(self.room, self.pool.available))} more of this worker's KV memory now"
            )
        self.pins.update(lease.blocks)
        for block in lease.blocks:
            self.pool.index.observer.leased(block)
        self.owner_blocks[lease.owner] += len(lease.blocks)
        self.leases[lease.id] = self.changed[lease.id] = lease
        self.push(lease)
        self.expire(now)

    def push(self, lease: PrefixLease) -> None:
        if len(self.ends) > 2 * len(self.leases) + STALE_ENDS:
            self.ends = [(held.term.end, held.id) for held in self.leases.values()]
            heapify(self.ends)
        else:
            heappush(self.ends, (lease.term.end, lease.id))

    def extend(self, name: str, seconds: int, now: float) -> bool:
        """Grant a lease for so many seconds in all, unless it was granted for more. Return whether it is held."""
        self.expire(now)
        lease = self.leases.get(name)
        if lease is not None:
            if seconds > lease.term.seconds:
                lease.term.seconds = seconds
                self.push(lease)
            self.changed[name] = lease
        return lease is not None

    def release(self, name: str, now: float) -> None:
        """End a lease at its client's wish."""
        self.expire(now)
        if name in self.leases:
            self.finish(self.leases[name], RELEASED, now)

    def refund(self, name: str, reason: str, now: float) -> None:
        """End a lease, since it cannot be kept."""
        self.expire(now)
        if name in self.leases:
            self.finish(self.leases[name], REFUNDED, now, reason)

    def refund_all(self, reason: str, now: float) -> None:
        for name in list(self.leases):
            self.refund(name, reason, now)

    def expire(self, now: float) -> None:
        """End the leases whose time is over."""
        while self.ends and self.ends[0][0] <= now:
            _, name = heappop(self.ends)
            lease = self.leases.get(name)
            if lease is not None and lease.term.end <= now:
                self.finish(lease, EXPIRED, now)

    def finish(self, lease: PrefixLease, state: str, now: float, reason: str | None = None) -> None:
        lease.term.close(state, now, reason)
        del self.leases[lease.id]
        self.pool.release(lease.blocks)
        self.pins.subtract(lease.blocks)
        for block in lease.blocks:
            if not self.pins[block]:
                del self.pins[block]
        self.owner_blocks[lease.owner] -= len(lease.blocks)
        if not self.owner_blocks[lease.owner]:
            del self.owner_blocks[lease.owner]
        self.settled += lease.term.amounts(now)
        self.changed[lease.id] = lease

    def take_changed(self) -> list[PrefixLease]:
        """Return the leases that changed since the last call."""
        leases, self.changed = list(self.changed.values()), {}
        return leases

    def amounts(self, now: float) -> ByteSeconds:
        """Return what became of all byte-seconds that were ever granted here."""
        return sum((lease.term.amounts(now) for lease in self.leases.values()), self.settled)

    def check(self) -> None:
        """Assert the conservation laws."""
        counts = Counter(block for lease in self.leases.values() for block in lease.blocks)
        assert counts == self.pins, "a pin belongs to no lease"
        assert all(self.pool.owners[block] >= 1 for block in self.pins), "a leased block has no owner"
        assert self.settled.ahead == 0, "granted is not held, released and refunded"
