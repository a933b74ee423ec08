# SPDX-License-Identifier: Apache-2.0
"""The connector of a rank: it pulls from peers of any number of ranks, and a driver has its followers pull as well."""

import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from pontil.runtime.cache.head_groups import HeadGroups, can_divide
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.disaggregation.joint_pull import JointPull, Part, PeerPools, PullPart
from pontil.runtime.disaggregation.rank_orders import RankOrders
from pontil.runtime.errors import TransferError
from pontil.runtime.transfer.connector import Pull, PullResult, SliceConnector
from pontil.runtime.wire.messages import RankDone

RANKS = "ranks"
PEER_ENDED = "the prefill worker ended"
REPORT: dict[str, tuple[type, ...]] = {
    "error": (str, type(None)),
    "epoch": (int, type(None)),
    "bytes": (int,),
    "seconds": (float, int),
}


def pools_of(descriptor: dict[str, Any], heads: int) -> list[dict[str, Any]]:
    """Return the descriptors of a peer's ranks: one that does not name ranks is itself the only one. Raises
    TransferError if so many ranks cannot hold the model's `heads`."""
    if descriptor.get("kind") != RANKS:
        return [descriptor]
    pools = descriptor.get("pools")
    if not isinstance(pools, list) or not all(isinstance(pool, dict) for pool in pools):
        raise TransferError("the peer's descriptor has no usable 'pools'")
    if not can_divide(heads, len(pools)):
        raise TransferError(f"the peer's {len(pools)} ranks cannot hold {heads} KV heads: its model is another one")
    return pools


class JointConnector:
    """The connector over a `transport`, which reads one pool for each pull. A peer has a pool for each of its ranks: a
    pull is split by those that have our heads. A driver orders the parts of its followers, whose pools have the
    descriptors `pools`, in the order of ranks. Digests are in the order (block, head group)."""

    def __init__(
        self,
        transport: SliceConnector,
        storage: KVStorage,
        orders: RankOrders | None = None,
        pools: Sequence[dict[str, Any]] = (),
        clock: Callable[[], float] = lambda: time.monotonic(),
    ) -> None:
        self.transport, self.layout, self.pools, self.clock = transport, storage.layout, list(pools), clock
        self.orders = RankOrders() if orders is None else orders
        self.peers: dict[str, PeerPools] = {}
        self.tickets = count(1)
        # The open pulls of which followers have parts, by their tickets.
        self.ordered: dict[int, JointPull] = {}
        self.ended: list[Pull] = []

    def register(self) -> dict[str, Any]:
        mine = self.transport.register()
        return {"kind": RANKS, "pools": [mine, *self.pools]} if self.pools else mine

    def attach(self, peer: str, descriptor: dict[str, Any]) -> None:
        """Attach a peer here, and order it. A follower that cannot makes the peer unreachable later."""
        previous_pools = self.peers.get(peer)
        if previous_pools is not None and previous_pools.is_attached:
            return
        layout, pools = self.layout, pools_of(descriptor, self.layout.num_kv_heads)
        division = HeadGroups(layout.num_kv_heads, len(pools), layout.ranks)
        sources = dict[str, range | None]()
        try:
            for group in division.taken_by(layout.rank):
                giver = division.giver_of(group)
                sources[f"{peer}/{giver}"] = division.all[group]
                self.transport.attach(f"{peer}/{giver}", pools[giver], division.held_by(giver))
        except TransferError:
            for key in sources:
                self.transport.detach(key)
            raise
        peer_pools = self.peers.setdefault(peer, PeerPools(self.orders, self.clock))
        peer_pools.is_attached, peer_pools.sources = True, sources
        # Answers to earlier plans are not about this attachment.
        peer_pools.since, peer_pools.direct = self.orders.sent + 1, set()
        peer_pools.columns = self.columns(sources, division)
        self.orders.attach(peer, descriptor)

    def columns(self, sources: dict[str, range | None], division: HeadGroups) -> dict[Part, range]:
        """Return the head groups of each part. Those of rank 0 are the first ones."""
        followers: dict[Part, range] = {rank: division.taken_by(rank) for rank in self.orders.followers}
        return {key: range(group, group + 1) for group, key in enumerate(sources)} | followers

    def detach(self, peer: str) -> None:
        """Forget a peer. Its pulls go on, and what comes for them counts until the last has ended."""
        peer_pools = self.peers.get(peer)
        if peer_pools is not None and peer_pools.is_attached:
            for key in peer_pools.sources:
                self.transport.detach(key)
            peer_pools.is_attached, peer_pools.broken = False, None
            self.forget(peer)
        self.orders.detach(peer)

    def forget(self, peer: str) -> None:
        """Forget a peer that was detached, once none of its pulls is open."""
        peer_pools = self.peers.get(peer)
        if peer_pools is not None and not peer_pools.is_attached and not peer_pools.waiting:
            del self.peers[peer]

    def staged(self, peer: str) -> bool:
        """Return whether the peer has to stage its blocks for some rank: it has to for a follower that has not said
        that it reads the peer's own memory."""
        peer_pools = self.peers.get(peer)
        if peer_pools is None:
            return self.orders.ranks > 1 or self.transport.staged(peer)
        all_direct = all(rank in peer_pools.direct for rank in self.orders.followers)
        return not all_direct or any(self.transport.staged(key) for key in peer_pools.sources)

    def lost(self) -> list[str]:
        return list(self.unreachable())

    def unreachable(self) -> dict[str, str]:
        """Return the attached peers from which some rank can pull nothing, with the reasons."""
        broken = dict[str, str]()
        for name, peer in self.peers.items():
            if peer.broken is not None:
                broken[name] = peer.broken
        if not (lost := self.transport.lost()):
            return broken
        return broken | dict.fromkeys(sorted({key.rpartition("/")[0] for key in lost}), PEER_ENDED)

    def pull(self, pull: Pull) -> None:
        """Begin a pull. One from an unknown peer is the transport's to refuse."""
        peer = self.peers.get(pull.peer)
        if peer is None:
            division = HeadGroups(self.layout.num_kv_heads, 1, self.layout.ranks)
            peer = PeerPools(self.orders, self.clock, {pull.peer: None})
            peer.columns = self.columns(peer.sources, division)
        whole = JointPull(pull, peer, next(self.tickets), peer.columns)
        for key, heads in peer.sources.items():
            whole.read.append(PullPart(key, pull.pairs, pull.slot, pull.shown, heads, whole=whole))
            self.transport.pull(whole.read[-1])
        whole.wait()
        if self.orders.ranks > 1:
            self.order(whole)

    def order(self, whole: JointPull) -> None:
        """Have the followers pull their parts."""
        self.ordered[whole.ticket], pull = whole, whole.pull
        order = {
            "ticket": whole.ticket,
            "peer": pull.peer,
            "pairs": [list(pair) for pair in pull.pairs],
            "slot": pull.slot,
        }
        if pull.shown is not None:
            order["grant"] = [pull.shown.transfer_id, pull.shown.epoch, pull.shown.secret]
        self.orders.add("pulls", order)

    def poll(self) -> list[Pull]:
        for part in self.transport.poll():
            if isinstance(part, PullPart) and part in part.whole.read:
                self.end(part.whole, part.peer, part.end)
        pulls, self.ended = self.ended, []
        return pulls

    def end(self, whole: JointPull, part: Part, result: PullResult) -> None:
        if whole.end(part, result):
            self.ordered.pop(whole.ticket, None)
            self.ended.append(whole.pull)
            self.forget(whole.pull.peer)

    def take(self, done: RankDone) -> None:
        """Handle a follower's report. What is not about an attached peer or an open pull is ignored."""
        if done.rank not in self.orders.followers:
            return
        self.orders.heard(done.rank, done.number)
        for name, beat in done.received.items():
            if name in self.peers:
                self.peers[name].told[done.rank] = beat
        for name, reason in (dict.fromkeys(done.lost, PEER_ENDED) | done.failed_peers).items():
            if name in self.peers and self.peers[name].is_attached:
                self.peers[name].broken = reason
        for name in done.direct:
            if name in self.peers and self.peers[name].is_attached and done.number >= self.peers[name].since:
                self.peers[name].direct.add(done.rank)
        for report in done.pulls:
            ticket = report.get("ticket")
            whole = self.ordered.get(ticket) if isinstance(ticket, int) else None
            if whole is not None:
                self.end(whole, done.rank, result_of(report, done.rank))

    def close(self) -> None:
        self.transport.close()


def result_of(told: dict[str, Any], rank: int) -> PullResult:
    """Return what a follower reports of a pull. A report that cannot be read is a failed pull."""
    digests = told.get("digests")
    sound = isinstance(digests, list) and all(isinstance(digest, int) for digest in digests)
    if not sound or not all(isinstance(told.get(name), kind) for name, kind in REPORT.items()):
        return PullResult(f"rank {rank} reported the end of a pull in a form that is not known")
    return PullResult(told["error"], told["epoch"], told["bytes"], told["seconds"], told["digests"])
