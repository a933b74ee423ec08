# SPDX-License-Identifier: Apache-2.0
"""A worker's book of leases: which blocks it keeps, for whom, and until when.

The blocks of leases are pinned in the pool and in the tiers below it (`pinned_blocks.py`), so that a step costs the
same with a thousand leases as with none. Blocks that several leases share are kept once, and each lease pays for all of
its own: who comes second must not ride on a lease that another one may end.
"""

from collections import Counter
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from pontil.runtime.cache.leases.lease import EXPIRED, REFUNDED, RELEASED, ByteSeconds, PrefixLease
from pontil.runtime.cache.leases.pinned_blocks import PinnedBlocks

# Ends in the heap that leases have no longer, beside as many as there are leases.
STALE_ENDS = 64
LOST, STUCK = "a tier of its worker lost a block of it", "the tiers of its worker did not take it in time"


class LeaseRefused(Exception):
    """A lease that is not granted; the text says why, with figures."""


@dataclass(slots=True)
class LeaseBook:
    """The leases on blocks, of so many bytes each, which `pins` keep. Not thread-safe: the engine's thread owns it. The
    caller passes the time, by a monotonic clock.

    Conservation: `settled` has what became of the leases that ended; there granted = held + released + refunded. `pins`
    has each block of each lease, and no other.

    Leases that changed are in `changed` until they are told. `promised` has room for prompts that are being computed.
    """

    pins: PinnedBlocks
    block_bytes: int
    block_size: int
    owner_bytes: int | None = None
    leases: dict[str, PrefixLease] = field(default_factory=dict)
    owner_blocks: Counter[str] = field(default_factory=Counter)
    promised: dict[str, tuple[str, int]] = field(default_factory=dict)
    ends: list[tuple[float, str]] = field(default_factory=list)
    changed: dict[str, PrefixLease] = field(default_factory=dict)
    settled: ByteSeconds = field(default_factory=ByteSeconds)

    @property
    def room(self) -> int:
        """The blocks for which there may be more leases."""
        return max(0, self.pins.most - len(self.pins) - self.promised_blocks)

    @property
    def promised_blocks(self) -> int:
        return sum(count for _, count in self.promised.values())

    def promise(self, name: str, owner: str, count: int) -> None:
        """Keep room for a lease of so many blocks until it is granted or `forgo` is called. Raises LeaseRefused."""
        self.check_owner(owner, count)
        if count > self.room:
            raise LeaseRefused(
                f"the lease would hold {self.told(count)}, and leases may hold {self.told(self.room)} more in this "
                f"worker's KV memory and tiers now, of {self.told(self.pins.most)} in all"
            )
        self.promised[name] = owner, count

    def check_owner(self, owner: str, count: int) -> None:
        most = self.owner_bytes
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
        here, all_blocks = self.pins.found(lease.keys), len(lease.keys)
        if here < all_blocks:
            raise LeaseRefused(f"only {here * self.block_size} of {all_blocks * self.block_size} tokens are here")
        if self.pins.fresh(lease.keys) > self.room or not self.pins.pin(lease.keys):
            room = min(self.room, self.pins.pool.available)
            raise LeaseRefused(f"leases may hold {self.told(room)} more in this worker's KV memory and tiers now")
        self.owner_blocks[lease.owner] += all_blocks
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
        self.pins.unpin(lease.keys)
        self.owner_blocks[lease.owner] -= len(lease.keys)
        if not self.owner_blocks[lease.owner]:
            del self.owner_blocks[lease.owner]
        self.settled += lease.term.amounts(now)
        self.changed[lease.id] = lease

    def settle(self, now: float) -> None:
        """Have blocks move to tiers where the pool has too many. Refund the leases of which a block was lost, and the
        latest ones in the pool if tiers do not take what they should."""
        if lost := self.pins.settle():
            for lease in list(self.leases.values()):
                if not lost.isdisjoint(lease.keys):
                    self.refund(lease.id, LOST, now)
        if not self.leases:
            # Without leases no block is owned, so that none has to move.
            self.pins.excess_since = None
            return
        self.pins.move(self.promised_blocks)
        if self.pins.is_stuck(now):
            for lease in reversed(list(self.leases.values())):
                if self.pins.excess > 0 and not self.pins.owned.keys().isdisjoint(lease.keys):
                    self.refund(lease.id, STUCK, now)

    def take_changed(self) -> list[PrefixLease]:
        """Return the leases that changed since the last call."""
        leases, self.changed = list(self.changed.values()), {}
        return leases

    def amounts(self, now: float) -> ByteSeconds:
        """Return what became of all byte-seconds that were ever granted here."""
        return sum((lease.term.amounts(now) for lease in self.leases.values()), self.settled)

    def check(self) -> None:
        """Assert the conservation laws."""
        counts = Counter(key for lease in self.leases.values() for key in lease.keys)
        assert counts == self.pins.leases, "a pin belongs to no lease"
        self.pins.check()
        assert self.settled.ahead == 0, "granted is not held, released and refunded"
