# SPDX-License-Identifier: Apache-2.0
"""Pulls by all ranks of a worker, as its driver sees them: one pull, which ends once every rank has reported."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from pontil.runtime.cache.head_groups import HeadGroups
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.disaggregation.rank_orders import RankOrders
from pontil.runtime.transfer.connector import Connector, Pair, PullResult
from pontil.runtime.transfer.grants import Grant
from pontil.runtime.transfer.joint_pulls import JointProgress, JointPull, JointPulls
from pontil.runtime.transfer.ranked_connector import RANKS, pools_of
from pontil.runtime.wire.messages import RankDone

PEER_ENDED = "the prefill worker ended"
# Seconds without an answer to a plan after which a follower may be in a long computation. One that answers sooner, if
# only ever the plan before, says with each answer what it has received.
COMPUTING = 1.0
REPORT: dict[str, tuple[type, ...]] = {
    "error": (str, type(None)),
    "epoch": (int, type(None)),
    "bytes": (int,),
    "seconds": (float, int),
}


class RankConnector:
    """The connector over all ranks: rank 0 pulls with its `own`, the followers by orders. `pools` are the followers'
    descriptors in the order of ranks. Tickets are this connector's, and the orders name them."""

    def __init__(
        self, own: Connector, storage: KVStorage, orders: RankOrders, pools: Sequence[dict[str, Any]] = (),
        clock: Callable[[], float] = lambda: time.monotonic(),
    ) -> None:  # fmt: skip
        self.own, self.layout, self.orders, self.pools = own, storage.layout, orders, list(pools)
        self.clock = clock
        self.pulls = JointPulls()
        self.last = 0
        # Tickets by those of `own`, and the other way.
        self.tickets: dict[int, int] = {}
        self.own_of: dict[int, int] = {}
        self.divisions: dict[str, HeadGroups] = {}
        self.progress: dict[str, JointProgress] = {}
        # The last answered plan of each follower; by peer, the bytes that each has received.
        self.answered = dict.fromkeys(orders.followers, 0)
        # The time since which each follower owes an answer and has given none.
        self.behind: dict[int, float] = {}
        self.counts: dict[str, dict[int, int]] = {}
        self.broken: dict[str, str] = {}
        # Peers that were detached and still have pulls.
        self.leaving: set[str] = set()

    def register(self) -> dict[str, Any]:
        mine = self.own.register()
        return {"kind": RANKS, "pools": [mine, *self.pools]} if self.pools else mine

    def attach(self, peer: str, descriptor: dict[str, Any]) -> None:
        """Attach a peer here, and order it. A follower that cannot makes the peer unreachable later."""
        if peer in self.divisions:
            return
        self.own.attach(peer, descriptor)
        heads, giving = self.layout.num_kv_heads, len(pools_of(descriptor, self.layout.num_kv_heads))
        self.divisions[peer] = HeadGroups(heads, giving, self.layout.ranks)
        self.leaving.discard(peer)
        self.progress[peer], self.counts[peer] = JointProgress(), dict.fromkeys(self.orders.followers, 0)
        self.orders.attach(peer, descriptor)

    def detach(self, peer: str) -> None:
        """Forget a peer. Its pulls go on, and what comes for them counts until the last has ended."""
        self.own.detach(peer)
        self.orders.detach(peer)
        self.divisions.pop(peer, None)
        self.broken.pop(peer, None)
        if peer in self.progress and self.pulls.waiting(peer):
            self.leaving.add(peer)
        else:
            self.forget_progress(peer)

    def forget_progress(self, peer: str) -> None:
        self.progress.pop(peer, None)
        self.counts.pop(peer, None)

    def staged(self, peer: str) -> bool:
        """Return whether the peer has to stage its blocks for some rank. It always has to where there are followers,
        which may reach it in another way."""
        return self.orders.ranks > 1 or self.own.staged(peer)

    def lost(self) -> list[str]:
        return list(self.unreachable())

    def unreachable(self) -> dict[str, str]:
        """Return the attached peers from which some rank can pull nothing, with the reasons."""
        return self.broken | dict.fromkeys(self.own.lost(), PEER_ENDED)

    def pull(self, peer: str, pairs: Sequence[Pair], slot: int, shown: Grant | None = None) -> int:
        self.last += 1
        division = self.divisions.get(peer, HeadGroups(self.layout.num_kv_heads, 1, self.layout.ranks))
        columns = {rank: division.taken_by(rank) for rank in range(self.layout.ranks)}
        self.pulls.begin(JointPull(self.last, peer, len(pairs), len(division.all), columns))
        own = self.own.pull(peer, pairs, slot, shown)
        self.tickets[own], self.own_of[self.last] = self.last, own
        grant = None if shown is None else [shown.transfer_id, shown.epoch, shown.secret]
        order = {"ticket": self.last, "peer": peer, "pairs": [list(pair) for pair in pairs], "slot": slot}
        self.orders.add("pulls", order if grant is None else order | {"grant": grant})
        return self.last

    def poll(self) -> list[PullResult]:
        for done in self.own.poll():
            ticket = self.tickets.pop(done.ticket, 0)
            self.own_of.pop(ticket, None)
            self.end(ticket, 0, done)
        for peer in [peer for peer in self.leaving if not self.pulls.waiting(peer)]:
            self.leaving.discard(peer)
            self.forget_progress(peer)
        return self.pulls.take()

    def end(self, ticket: int, rank: int, done: PullResult) -> None:
        """Record the end of a rank's part. After an error the other ranks' parts are cancelled."""
        self.cancel_parts(ticket, self.pulls.end(ticket, rank, done))

    def take(self, done: RankDone) -> None:
        """Handle a follower's report. What is not about an attached peer or an open pull is ignored."""
        if done.rank not in self.orders.followers:
            return
        self.answered[done.rank] = max(self.answered[done.rank], min(done.number, self.orders.sent))
        self.behind.pop(done.rank, None)
        for peer, received in done.received.items():
            if peer in self.counts:
                self.counts[peer][done.rank] = received
        reasons = dict.fromkeys(done.lost, PEER_ENDED) | done.failed_peers
        self.broken |= {peer: reason for peer, reason in reasons.items() if peer in self.divisions}
        for told in done.pulls:
            ticket = told.get("ticket")
            if isinstance(ticket, int):
                self.end(ticket, done.rank, result_of(told, done.rank))

    def received(self, peer: str) -> int:
        """Return a number that grows while bytes come to every rank that waits for some. A follower that owes an answer
        and gives none for a while may be computing, and counts as one to which bytes come: if it answers none any more,
        collectives notice."""
        progress = self.progress.get(peer)
        if progress is None:
            return 0
        now = self.clock()
        for rank, number in self.answered.items():
            if number < self.orders.sent:
                self.behind.setdefault(rank, now)
        busy = frozenset(rank for rank, since in self.behind.items() if now - since >= COMPUTING)
        counts = {0: self.own.received(peer), **self.counts[peer]}
        return progress.look(counts, self.pulls.waiting(peer), busy)

    def cancel(self, ticket: int) -> None:
        pull = self.pulls.open.get(ticket)
        self.cancel_parts(ticket, pull.waiting if pull else set())

    def cancel_parts(self, ticket: int, ranks: set[int]) -> None:
        if 0 in ranks:
            self.own.cancel(self.own_of[ticket])
        if ranks - {0}:
            self.orders.add("cancelled", ticket)

    def close(self) -> None:
        self.own.close()


def result_of(told: dict[str, Any], rank: int) -> PullResult:
    """Return what a follower reports of a pull. A report that cannot be read is a failed pull."""
    digests = told.get("digests")
    sound = isinstance(digests, list) and all(isinstance(digest, int) for digest in digests)
    if not sound or not all(isinstance(told.get(name), kind) for name, kind in REPORT.items()):
        return PullResult(0, f"rank {rank} reported the end of a pull in a form that is not known", None, 0, 0.0)
    return PullResult(0, told["error"], told["epoch"], told["bytes"], told["seconds"], told["digests"])
