# SPDX-License-Identifier: Apache-2.0
"""The part of a follower that carries out its driver's orders about KV blocks. It decides nothing."""

import queue
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from pontil.runtime.cache.follower_records import FollowerRecords
from pontil.runtime.cache.head_groups import HeadGroups
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.disaggregation.joint_connector import JointConnector
from pontil.runtime.disaggregation.publisher import HostPublisher, Publisher
from pontil.runtime.disaggregation.rank_pools import published
from pontil.runtime.errors import TransferError
from pontil.runtime.transfer.connector import Pull
from pontil.runtime.transfer.grants import Grant, Grants
from pontil.runtime.wire.messages import RankPlan


@dataclass(slots=True, eq=False, kw_only=True)
class OrderedPull(Pull):
    """This rank's part of a pull, under the driver's ticket."""

    ticket: int


class FollowerTransfers:
    """The transfers of one follower. `obey` each plan before its copies and rows; `report` after it, and whenever the
    connector wakes the process or a second has passed."""

    def __init__(
        self,
        storage: KVStorage,
        connector: JointConnector,
        grants: Grants | None = None,
        publisher: Publisher | None = None,
        records: FollowerRecords | None = None,
    ) -> None:
        self.records = records
        self.storage, self.connector, self.grants = storage, connector, grants or Grants()
        self.publisher = publisher or HostPublisher(storage)
        # The open pulls by their tickets.
        self.pulls: dict[int, OrderedPull] = {}
        # By peer, the number last told of what came; the peers that were told to be lost.
        self.received: dict[str, int] = {}
        self.lost: set[str] = set()
        # The attached peers that were told to be read without staging.
        self.direct: set[str] = set()
        # Filled by the publisher's thread, too.
        self.digests: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        self.failed_peers: dict[str, str] = {}

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
        for grant in plan.grants:
            self.change_grant(grant)
        for first, after in plan.erased:
            self.storage.erase(range(first, after))
        for block, filled_slots in plan.cleared:
            self.storage.clear_tail(block, filled_slots)
        for number, taking, staged, *blocks in plan.published:
            division = HeadGroups(self.storage.layout.num_kv_heads, self.storage.layout.ranks, taking)
            publication = published(blocks, division, self.storage.layout.rank, bool(staged))
            self.publisher.publish(publication, partial(self.published, number))
        self.publisher.forget(plan.forgotten)
        for peer in plan.detached:
            self.detach(peer)
        for peer, descriptor in plan.attached.items():
            self.attach(peer, descriptor)
        for order in plan.pulls:
            self.pull(order)
        for ticket in plan.cancelled:
            if ticket in self.pulls:
                self.pulls[ticket].cancel()

    def published(self, number: int, digests: list[int]) -> None:
        self.digests.put([number, *digests])

    def change_grant(self, grant: dict[str, Any]) -> None:
        if "secret" in grant:
            self.grants.open(Grant(grant["id"], grant["epoch"], grant["secret"]), grant["slot"])
        elif "blocks" in grant:
            self.grants.allow(grant["id"], grant["blocks"])
        else:
            self.grants.close(grant["id"])

    def attach(self, peer: str, descriptor: dict[str, Any]) -> None:
        try:
            self.connector.attach(peer, descriptor)
        except TransferError as error:
            self.failed_peers[peer] = str(error)

    def detach(self, peer: str) -> None:
        self.connector.detach(peer)
        self.lost.discard(peer)
        self.direct.discard(peer)

    def pull(self, order: dict[str, Any]) -> None:
        pairs = [(theirs, ours) for theirs, ours in order["pairs"]]
        grant = Grant(*order["grant"]) if "grant" in order else None
        pull = self.pulls[order["ticket"]] = OrderedPull(
            order["peer"], pairs, order["slot"], grant, ticket=order["ticket"]
        )
        self.connector.pull(pull)

    def report(self) -> dict[str, Any]:
        """Return the fields of a RankDone that have news since the last call; empty if there is none."""
        pull_results = [self.ended(pull) for pull in self.connector.poll() if isinstance(pull, OrderedPull)]
        counts = {name: peer.look() for name, peer in self.connector.peers.items()}
        fresh = {name: count for name, count in counts.items() if count != self.received.get(name, 0)}
        lost = [peer for peer in self.connector.lost() if peer not in self.lost]
        attached_peers = [name for name, peer in self.connector.peers.items() if peer.is_attached]
        direct = [name for name in attached_peers if not self.connector.staged(name)]
        untold = [name for name in direct if name not in self.direct]
        self.direct = set(direct)
        self.received = counts
        self.lost |= set(lost)
        digests = [self.digests.get() for _ in range(self.digests.qsize())]
        news = {
            "digests": digests,
            "pulls": pull_results,
            "failed_peers": self.failed_peers,
            "received": fresh,
            "lost": lost,
            "direct": untold,
        }
        self.failed_peers = {}
        return {name: changes for name, changes in news.items() if changes}

    def ended(self, pull: OrderedPull) -> dict[str, Any]:
        del self.pulls[pull.ticket]
        return {"ticket": pull.ticket, **asdict(pull.end)}

    def close(self) -> None:
        self.connector.close()
        self.publisher.close()
