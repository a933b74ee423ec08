# SPDX-License-Identifier: Apache-2.0
"""The part of a follower that carries out its driver's orders about KV blocks. It decides nothing."""

import queue
from functools import partial
from typing import Any

from pontil.runtime.cache.follower_records import FollowerRecords
from pontil.runtime.cache.head_groups import HeadGroups
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.disaggregation.publisher import HostPublisher, Publisher
from pontil.runtime.disaggregation.rank_pools import published
from pontil.runtime.errors import TransferError
from pontil.runtime.transfer.connector import Connector, PullResult
from pontil.runtime.transfer.grants import Grant, Grants
from pontil.runtime.wire.messages import RankPlan


class FollowerTransfers:
    """The transfers of one follower. `obey` each plan before its copies and rows; `report` after it, and whenever the
    connector wakes the process or a second has passed while `pulling`."""

    def __init__(
        self, storage: KVStorage, connector: Connector, grants: Grants | None = None,
        publisher: Publisher | None = None, records: FollowerRecords | None = None,
    ) -> None:  # fmt: skip
        self.records = records
        self.storage, self.connector, self.grants = storage, connector, grants or Grants()
        self.publisher = publisher or HostPublisher(storage)
        # The driver's tickets by our connector's, and the other way.
        self.tickets: dict[int, int] = {}
        self.ours: dict[int, int] = {}
        # By peer, the number last told of what came. One that was detached is told of as long as it has pulls.
        self.peers: dict[str, int] = {}
        self.leaving: set[str] = set()
        # The peer of each open pull, by our connector's ticket.
        self.peer_of: dict[int, str] = {}
        self.lost: set[str] = set()
        # Filled by the publisher's thread, too.
        self.digests: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        self.failed_peers: dict[str, str] = {}

    @property
    def pulling(self) -> bool:
        return bool(self.tickets)

    def obey(self, plan: RankPlan) -> None:
        """Carry out what a plan says of blocks. Raises TransferError for an order that cannot be read: the driver and
        this process are not of one version."""
        try:
            self.carry_out(plan)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise TransferError(f"an order of the driver cannot be read ({error!r}): start the worker again") from error

    def carry_out(self, plan: RankPlan) -> None:
        if self.records is not None:
            self.records.obey(plan.recorded, plan.dropped)
        for slot, epoch in plan.epochs:
            self.storage.set_epoch(slot, epoch)
        for told in plan.grants:
            self.change_grant(told)
        for block, filled in plan.cleared:
            self.storage.clear_tail(block, filled)
        for number, taking, *blocks in plan.published:
            division = HeadGroups(self.storage.layout.num_kv_heads, self.storage.layout.ranks, taking)
            wanted = published(blocks, division, self.storage.layout.rank, staged=True)
            self.publisher.publish(wanted, partial(self.published, number))
        self.publisher.forget(plan.forgotten)
        for peer in plan.detached:
            self.detach(peer)
        for peer, descriptor in plan.attached.items():
            self.attach(peer, descriptor)
        for order in plan.pulls:
            self.pull(order)
        for ticket in plan.cancelled:
            if ticket in self.ours:
                self.connector.cancel(self.ours[ticket])

    def published(self, number: int, digests: list[int]) -> None:
        self.digests.put([number, *digests])

    def change_grant(self, told: dict[str, Any]) -> None:
        if "secret" in told:
            self.grants.open(Grant(told["id"], told["epoch"], told["secret"]), told["slot"])
        elif "blocks" in told:
            self.grants.allow(told["id"], told["blocks"])
        else:
            self.grants.close(told["id"])

    def attach(self, peer: str, descriptor: dict[str, Any]) -> None:
        try:
            self.connector.attach(peer, descriptor)
        except TransferError as error:
            self.failed_peers[peer] = str(error)
        else:
            self.peers[peer] = 0
            self.leaving.discard(peer)

    def detach(self, peer: str) -> None:
        self.connector.detach(peer)
        self.lost.discard(peer)
        self.leaving.add(peer)
        self.forget_leaving()

    def forget_leaving(self) -> None:
        """Forget the detached peers that have no pulls any more."""
        for peer in self.leaving.difference(self.peer_of.values()):
            self.peers.pop(peer, None)
            self.leaving.discard(peer)

    def pull(self, order: dict[str, Any]) -> None:
        pairs = [(theirs, ours) for theirs, ours in order["pairs"]]
        shown = Grant(*order["grant"]) if "grant" in order else None
        mine = self.connector.pull(order["peer"], pairs, order["slot"], shown)
        self.tickets[mine], self.ours[order["ticket"]] = order["ticket"], mine
        self.peer_of[mine] = order["peer"]

    def report(self) -> dict[str, Any]:
        """Return the fields of a RankDone that have news since the last call; empty if there is none."""
        ended = [self.ended(done) for done in self.connector.poll() if done.ticket in self.tickets]
        counts = {peer: self.connector.received(peer) for peer in self.peers}
        fresh = {peer: count for peer, count in counts.items() if count != self.peers[peer]}
        lost = [peer for peer in self.connector.lost() if peer not in self.lost]
        self.peers |= fresh
        self.lost |= set(lost)
        digests = [self.digests.get() for _ in range(self.digests.qsize())]
        news = {
            "digests": digests, "pulls": ended, "failed_peers": self.failed_peers, "received": fresh, "lost": lost,
        }  # fmt: skip
        self.failed_peers = {}
        self.forget_leaving()
        return {name: told for name, told in news.items() if told}

    def ended(self, done: PullResult) -> dict[str, Any]:
        """Return the report of a pull, under the driver's ticket."""
        ticket = self.tickets.pop(done.ticket)
        del self.ours[ticket], self.peer_of[done.ticket]
        return {
            "ticket": ticket, "error": done.error, "epoch": done.epoch, "bytes": done.bytes, "seconds": done.seconds,
            "digests": done.digests,
        }  # fmt: skip

    def close(self) -> None:
        self.connector.close()
        self.publisher.close()
