# SPDX-License-Identifier: Apache-2.0
"""The KV pools of all ranks of a worker as its driver changes them: its own at once, the followers' by orders."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pontil.runtime.cache.head_groups import HeadGroups, in_order
from pontil.runtime.cache.storage import KVStorage, runs_of
from pontil.runtime.disaggregation.publisher import HostPublisher, PublishedBlocks, Publisher
from pontil.runtime.disaggregation.rank_orders import RankOrders
from pontil.runtime.transfer.grants import Grant, Grants
from pontil.runtime.wire.messages import RankDone


@dataclass(slots=True)
class Publication:
    """Blocks that the ranks make readable for a peer. `parts` are the digests of the ranks that have answered, each in
    the order (block, head group)."""

    blocks: list[int]
    division: HeadGroups
    parts: dict[int, list[int]] = field(default_factory=dict)

    def stated(self, rank: int, digests: list[int]) -> None:
        self.parts[rank] = digests

    def digests(self) -> list[int] | None:
        """Return the digests in the order (block, head group) once all ranks have answered. Raises ValueError if an
        answer is not for these blocks."""
        if len(self.parts) < self.division.giving:
            return None
        part_digests = [(self.division.given_by(rank), digests) for rank, digests in self.parts.items()]
        return in_order(part_digests, len(self.blocks), len(self.division.all))


class RankPools:
    """Owner of nothing: the pool of block numbers is the engine's. An order is carried out by a follower before
    anything that is computed or pulled later, as it is here."""

    def __init__(
        self,
        storage: KVStorage,
        orders: RankOrders | None = None,
        grants: Grants | None = None,
        publisher: Publisher | None = None,
    ) -> None:
        self.storage, self.layout = storage, storage.layout
        self.fingerprint = self.layout.fingerprint()
        self.publisher = publisher or HostPublisher(storage)
        self.orders, self.grants = orders if orders is not None else RankOrders(), grants or Grants()
        self.last = 0
        # Publications that some rank has not answered, by their number.
        self.unanswered: dict[int, Publication] = {}

    def set_epoch(self, slot: int, epoch: int) -> None:
        self.storage.set_epoch(slot, epoch)
        self.orders.add("epochs", [slot, epoch])

    def clear_tail(self, block: int, filled: int) -> None:
        self.storage.clear_tail(block, filled)
        self.orders.add("cleared", [block, filled])

    def erase(self, blocks: Sequence[int]) -> None:
        """Zero blocks that nobody uses, in ascending order, and give back their memory."""
        self.storage.erase(blocks)
        self.orders.add("erased", *runs_of(blocks))

    def publish(self, blocks: list[int], taking: int, staged: bool = True, mark: Any = None) -> Publication:
        """Make blocks readable for a peer of so many ranks, and digest them. `staged`: in host memory. They are final
        at `mark` in this process, else behind everything that was started so far."""
        division = HeadGroups(self.layout.num_kv_heads, self.layout.ranks, taking)
        publication = Publication(list(blocks), division)
        wanted = replace(published(blocks, division, self.layout.rank, staged), mark=mark)
        self.publisher.publish(wanted, partial(publication.stated, 0))
        if blocks and self.orders.ranks > 1:
            self.last += 1
            self.unanswered[self.last] = publication
            self.orders.add("published", [self.last, taking, int(staged), *blocks])
        else:
            publication.parts.update({rank: [] for rank in self.orders.followers})
        return publication

    def forget(self, blocks: list[int]) -> None:
        """Give back the host memory in which blocks were published."""
        self.publisher.forget(blocks)
        if self.storage.staged:
            self.orders.add("forgotten", *blocks)

    def take(self, done: RankDone) -> None:
        """Record a follower's digests. Those that were not asked for, or came before, are ignored."""
        for number, *digests in (answer for answer in done.digests if answer):
            publication = self.unanswered.get(number)
            if publication is None or done.rank not in self.orders.followers:
                continue
            publication.parts.setdefault(done.rank, digests)
            if publication.parts.keys() >= set(self.orders.followers):
                del self.unanswered[number]

    def open_grant(self, granted: Grant, slot: int) -> None:
        self.grants.open(granted, slot)
        self.orders.open_grant(granted, slot)

    def allow(self, transfer_id: str, blocks: list[int]) -> None:
        self.grants.allow(transfer_id, blocks)
        if blocks:
            self.orders.allow(transfer_id, blocks)

    def close_grant(self, transfer_id: str) -> None:
        self.grants.close(transfer_id)
        self.orders.close_grant(transfer_id)


def published(blocks: list[int], division: HeadGroups, rank: int, staged: bool) -> PublishedBlocks:
    """The blocks with the head groups that a rank reads out; of none, nothing is made readable."""
    groups = [division.all[group] for group in division.given_by(rank)]
    return PublishedBlocks(blocks if groups else [], groups, staged)
